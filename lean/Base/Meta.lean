/-
Base.Meta : the data types that the parser, the macro expander and the quotation
elaborator of the native Lean exchange with interpreted code.

Layout (constructor and field order) is interface.  Functions that exist natively
in libleanshared are only *declared*: for an `extern` declaration the interpreter
calls the native symbol with the mangled Lean name.
-/
prelude
import Base.Data
set_option autoImplicit true
set_option linter.all false
universe u v w

/-! ## Monads (only as much as `do` and quotations need) -/
class Bind (m : Type u → Type v) where
  bind : {α β : Type u} → m α → (α → m β) → m β
export Bind (bind)
class Pure (f : Type u → Type v) where
  pure {α : Type u} : α → f α
export Pure (pure)
class Functor (f : Type u → Type v) : Type (max (u+1) v) where
  map : {α β : Type u} → (α → β) → f α → f β
class Applicative (f : Type u → Type v) extends Functor f, Pure f
class Monad (m : Type u → Type v) : Type (max (u+1) v) extends Applicative m, Bind m where
  map f x := bind x (fun a => pure (f a))
instance [Monad m] : Inhabited (α → m α) where default := pure
instance [Monad m] [Inhabited α] : Inhabited (m α) where default := pure default

def ReaderT (ρ : Type u) (m : Type u → Type v) (α : Type u) : Type (max u v) := (a : ρ) → m α
instance [Inhabited (m α)] : Inhabited (ReaderT ρ m α) := ⟨fun _ => default⟩
@[always_inline] instance [Monad m] : Monad (ReaderT ρ m) where
  bind x f := fun r => bind (x r) fun a => f a r
  pure a := fun _ => pure a

inductive EStateM.Result (ε σ α : Type u) where
  | ok : α → σ → Result ε σ α
  | error : ε → σ → Result ε σ α
def EStateM (ε σ α : Type u) := σ → EStateM.Result ε σ α
instance [Inhabited ε] : Inhabited (EStateM ε σ α) := ⟨fun s => .error default s⟩
@[always_inline] instance EStateM.instMonad : Monad (EStateM ε σ) where
  pure a := fun s => .ok a s
  bind x f := fun s => match x s with
    | .ok a s => f a s
    | .error e s => .error e s

class MonadExcept (ε : semiOutParam (Type u)) (m : Type v → Type w) where
  throw {α : Type v} : ε → m α
  tryCatch {α : Type v} : m α → (ε → m α) → m α
export MonadExcept (throw tryCatch)
@[always_inline] instance : MonadExcept ε (EStateM ε σ) where
  throw e := fun s => .error e s
  tryCatch x h := fun s => match x s with
    | .error e s => h e s
    | .ok a s => .ok a s
@[always_inline] instance [MonadExcept ε m] : MonadExcept ε (ReaderT ρ m) where
  throw e := fun _ => throw e
  tryCatch x h := fun r => tryCatch (x r) (fun e => h e r)

/-! ## Names and syntax trees -/
class Hashable (α : Sort u) where hash : α → UInt64
export Hashable (hash)
@[extern "lean_uint64_mix_hash"] opaque mixHash (u₁ u₂ : UInt64) : UInt64
@[extern "lean_string_hash"] protected opaque String.hash (s : @& String) : UInt64

/-- Reinterpretation, for run-time code only (computed fields use it). -/
unsafe def unsafeCast {α : Sort u} {β : Sort v} (a : α) : β :=
  have lifted : ULift.{max u v} (PLift α) := ⟨⟨a⟩⟩
  have cast' : ULift.{max u v} (PLift β) := cast lcProof lifted
  cast'.down.down
@[never_extract, extern "lean_panic_fn_borrowed"]
def panicCore {α : Sort u} [@&Inhabited α] (msg : String) : α := default
@[noinline, never_extract] def panic {α : Sort u} [Inhabited α] (msg : String) : α := panicCore msg

structure String.Pos.Raw where
  byteIdx : Nat := 0
instance : Inhabited String.Pos.Raw := ⟨⟨0⟩⟩
structure Substring.Raw where
  str : String
  startPos : String.Pos.Raw
  stopPos : String.Pos.Raw
instance : Inhabited Substring.Raw := ⟨⟨"", ⟨0⟩, ⟨0⟩⟩⟩
@[extern "l_String_toRawSubstring_x27"] opaque String.toRawSubstring' (s : String) : Substring.Raw

@[extern "l_Array_mkArray0"] opaque Array.mkArray0 {α : Type u} : Array α
@[extern "l_Array_mkArray1"] opaque Array.mkArray1 {α : Type u} (a₁ : α) : Array α
@[extern "l_Array_mkArray2"] opaque Array.mkArray2 {α : Type u} (a₁ a₂ : α) : Array α
@[extern "l_Array_mkArray3"] opaque Array.mkArray3 {α : Type u} (a₁ a₂ a₃ : α) : Array α
@[extern "l_Array_mkArray4"] opaque Array.mkArray4 {α : Type u} (a₁ a₂ a₃ a₄ : α) : Array α
@[extern "l_Array_mkArray5"] opaque Array.mkArray5 {α : Type u} (a₁ a₂ a₃ a₄ a₅ : α) : Array α
@[extern "l_Array_mkArray6"] opaque Array.mkArray6 {α : Type u} (a₁ a₂ a₃ a₄ a₅ a₆ : α) : Array α
@[extern "l_Array_mkArray7"] opaque Array.mkArray7 {α : Type u} (a₁ a₂ a₃ a₄ a₅ a₆ a₇ : α) : Array α
@[extern "l_Array_mkArray8"] opaque Array.mkArray8 {α : Type u} (a₁ a₂ a₃ a₄ a₅ a₆ a₇ a₈ : α) : Array α
@[extern "l_Array_extract"] opaque Array.extract {α : Type u} (as : Array α) (start : Nat) (stop : Nat) : Array α
@[extern "l_Array_appendCore"] opaque Array.appendCore {α : Type u} (as : Array α) (bs : Array α) : Array α

namespace Lean

inductive Name where
  | anonymous : Name
  | str (pre : Name) (str : String)
  | num (pre : Name) (i : Nat)
with
  @[computed_field, inline] hash : Name → UInt64
    | .anonymous => .ofNatLT 1723 (of_decide_eq_true rfl)
    | .str p s => mixHash p.hash s.hash
    | .num p v => mixHash p.hash (dite (LT.lt v UInt64.size) (fun h => UInt64.ofNatLT v h)
        (fun _ => UInt64.ofNatLT 17 (of_decide_eq_true rfl)))
instance : Inhabited Name := ⟨Name.anonymous⟩

namespace Name
abbrev mkStr (p : Name) (s : String) : Name := Name.str p s
abbrev mkNum (p : Name) (v : Nat) : Name := Name.num p v
abbrev mkSimple (s : String) : Name := .str .anonymous s
@[reducible] def mkStr1 (s₁ : String) : Name := .str .anonymous s₁
@[reducible] def mkStr2 (s₁ s₂ : String) : Name := .str (mkStr1 s₁) s₂
@[reducible] def mkStr3 (s₁ s₂ s₃ : String) : Name := .str (mkStr2 s₁ s₂) s₃
@[reducible] def mkStr4 (s₁ s₂ s₃ s₄ : String) : Name := .str (mkStr3 s₁ s₂ s₃) s₄
@[reducible] def mkStr5 (s₁ s₂ s₃ s₄ s₅ : String) : Name := .str (mkStr4 s₁ s₂ s₃ s₄) s₅
@[reducible] def mkStr6 (s₁ s₂ s₃ s₄ s₅ s₆ : String) : Name := .str (mkStr5 s₁ s₂ s₃ s₄ s₅) s₆
@[reducible] def mkStr7 (s₁ s₂ s₃ s₄ s₅ s₆ s₇ : String) : Name := .str (mkStr6 s₁ s₂ s₃ s₄ s₅ s₆) s₇
@[reducible] def mkStr8 (s₁ s₂ s₃ s₄ s₅ s₆ s₇ s₈ : String) : Name := .str (mkStr7 s₁ s₂ s₃ s₄ s₅ s₆ s₇) s₈
@[extern "lean_name_eq"] protected opaque beq (a : @& Name) (b : @& Name) : Bool
instance : BEq Name := ⟨Name.beq⟩
end Name

inductive SourceInfo where
  | original (leading : Substring.Raw) (pos : String.Pos.Raw) (trailing : Substring.Raw) (endPos : String.Pos.Raw)
  | synthetic (pos : String.Pos.Raw) (endPos : String.Pos.Raw) (canonical := false)
  | protected none
instance : Inhabited SourceInfo := ⟨SourceInfo.none⟩

abbrev SyntaxNodeKind := Name
inductive Syntax.Preresolved where
  | namespace (ns : Name)
  | decl (n : Name) (fields : List String)
inductive Syntax where
  | missing : Syntax
  | node (info : SourceInfo) (kind : SyntaxNodeKind) (args : Array Syntax) : Syntax
  | atom (info : SourceInfo) (val : String) : Syntax
  | ident (info : SourceInfo) (rawVal : Substring.Raw) (val : Name) (preresolved : List Syntax.Preresolved) : Syntax
@[implicit_reducible] def SyntaxNodeKinds := List SyntaxNodeKind
structure TSyntax (ks : SyntaxNodeKinds) where
  raw : Syntax
instance : Inhabited Syntax := ⟨Syntax.missing⟩
instance : Inhabited (TSyntax ks) := ⟨⟨default⟩⟩
abbrev TSyntaxArray (ks : SyntaxNodeKinds) := Array (TSyntax ks)

unsafe def TSyntaxArray.rawImpl (as : TSyntaxArray ks) : Array Syntax := unsafeCast as
@[implemented_by TSyntaxArray.rawImpl] opaque TSyntaxArray.raw (as : TSyntaxArray ks) : Array Syntax := Array.empty
unsafe def TSyntaxArray.mkImpl (as : Array Syntax) : TSyntaxArray ks := unsafeCast as
@[implemented_by TSyntaxArray.mkImpl] opaque TSyntaxArray.mk (as : Array Syntax) : TSyntaxArray ks := Array.empty

abbrev choiceKind : SyntaxNodeKind := `choice
abbrev nullKind : SyntaxNodeKind := `null
abbrev groupKind : SyntaxNodeKind := `group
abbrev identKind : SyntaxNodeKind := `ident
abbrev strLitKind : SyntaxNodeKind := `str
abbrev charLitKind : SyntaxNodeKind := `char
abbrev numLitKind : SyntaxNodeKind := `num
abbrev scientificLitKind : SyntaxNodeKind := `scientific
abbrev nameLitKind : SyntaxNodeKind := `name
abbrev fieldIdxKind : SyntaxNodeKind := `fieldIdx
abbrev hygieneInfoKind : SyntaxNodeKind := `hygieneInfo
abbrev hexnumKind : SyntaxNodeKind := `hexnum
abbrev interpolatedStrLitKind : SyntaxNodeKind := `interpolatedStrLitKind
abbrev interpolatedStrKind : SyntaxNodeKind := `interpolatedStrKind

/-! Native helpers: declared, not defined. -/
@[extern "l_Lean_Syntax_node1"] opaque Syntax.node1 (info : SourceInfo) (kind : SyntaxNodeKind) (a₁ : Syntax) : Syntax
@[extern "l_Lean_Syntax_node2"]
opaque Syntax.node2 (info : SourceInfo) (kind : SyntaxNodeKind) (a₁ a₂ : Syntax) : Syntax
@[extern "l_Lean_Syntax_node3"]
opaque Syntax.node3 (info : SourceInfo) (kind : SyntaxNodeKind) (a₁ a₂ a₃ : Syntax) : Syntax
@[extern "l_Lean_Syntax_node4"]
opaque Syntax.node4 (info : SourceInfo) (kind : SyntaxNodeKind) (a₁ a₂ a₃ a₄ : Syntax) : Syntax
@[extern "l_Lean_Syntax_node5"]
opaque Syntax.node5 (info : SourceInfo) (kind : SyntaxNodeKind) (a₁ a₂ a₃ a₄ a₅ : Syntax) : Syntax
@[extern "l_Lean_Syntax_node6"]
opaque Syntax.node6 (info : SourceInfo) (kind : SyntaxNodeKind) (a₁ a₂ a₃ a₄ a₅ a₆ : Syntax) : Syntax
@[extern "l_Lean_Syntax_node7"]
opaque Syntax.node7 (info : SourceInfo) (kind : SyntaxNodeKind) (a₁ a₂ a₃ a₄ a₅ a₆ a₇ : Syntax) : Syntax
@[extern "l_Lean_Syntax_node8"]
opaque Syntax.node8 (info : SourceInfo) (kind : SyntaxNodeKind) (a₁ a₂ a₃ a₄ a₅ a₆ a₇ a₈ : Syntax) : Syntax
@[extern "l_Lean_Syntax_isOfKind"] opaque Syntax.isOfKind (stx : Syntax) (k : SyntaxNodeKind) : Bool
@[extern "l_Lean_Syntax_getKind"] opaque Syntax.getKind (stx : Syntax) : SyntaxNodeKind
@[extern "l_Lean_Syntax_getArg"] opaque Syntax.getArg (stx : Syntax) (i : Nat) : Syntax
@[extern "l_Lean_Syntax_getArgs"] opaque Syntax.getArgs (stx : Syntax) : Array Syntax
@[extern "l_Lean_Syntax_getNumArgs"] opaque Syntax.getNumArgs (stx : Syntax) : Nat
@[extern "l_Lean_Syntax_getOptional_x3f"] opaque Syntax.getOptional? (stx : Syntax) : Option Syntax
@[extern "l_Lean_Syntax_matchesNull"] opaque Syntax.matchesNull (stx : Syntax) (n : Nat) : Bool
@[extern "l_Lean_Syntax_matchesIdent"] opaque Syntax.matchesIdent (stx : Syntax) (id : Name) : Bool
@[extern "l_Lean_Syntax_matchesLit"] opaque Syntax.matchesLit (stx : Syntax) (k : SyntaxNodeKind) (val : String) : Bool
@[extern "l_Lean_Syntax_isNodeOf"] opaque Syntax.isNodeOf (stx : Syntax) (k : SyntaxNodeKind) (n : Nat) : Bool
@[extern "l_Lean_Syntax_getId"] opaque Syntax.getId (stx : Syntax) : Name
@[extern "l_Lean_SourceInfo_fromRef"] opaque SourceInfo.fromRef (ref : Syntax) (canonical := false) : SourceInfo
@[extern "l_Lean_addMacroScope"] opaque addMacroScope (ctx : Name) (n : Name) (scp : Nat) : Name
@[extern "l_Lean_replaceRef"] opaque replaceRef (ref : Syntax) (oldRef : Syntax) : Syntax
@[inline] def mkNode (k : SyntaxNodeKind) (args : Array Syntax) : TSyntax (.cons k .nil) :=
  ⟨Syntax.node SourceInfo.none k args⟩
@[inline] def mkNullNode (args : Array Syntax := Array.empty) : Syntax := (mkNode nullKind args).raw
def mkAtom (val : String) : Syntax := Syntax.atom SourceInfo.none val
def mkAtomFrom (src : Syntax) (val : String) (canonical := false) : Syntax :=
  Syntax.atom (SourceInfo.fromRef src canonical) val
structure Syntax.SepArray (sep : String) where
  elemsAndSeps : Array Syntax
structure Syntax.TSepArray (ks : SyntaxNodeKinds) (sep : String) where
  elemsAndSeps : Array Syntax

inductive ParserDescr where
  | const (name : Name)
  | unary (name : Name) (p : ParserDescr)
  | binary (name : Name) (p₁ p₂ : ParserDescr)
  | node (kind : SyntaxNodeKind) (prec : Nat) (p : ParserDescr)
  | trailingNode (kind : SyntaxNodeKind) (prec lhsPrec : Nat) (p : ParserDescr)
  | symbol (val : String)
  | nonReservedSymbol (val : String) (includeIdent : Bool)
  | cat (catName : Name) (rbp : Nat)
  | parser (declName : Name)
  | nodeWithAntiquot (name : String) (kind : SyntaxNodeKind) (p : ParserDescr)
  | sepBy (p : ParserDescr) (sep : String) (psep : ParserDescr) (allowTrailingSep : Bool := false)
  | sepBy1 (p : ParserDescr) (sep : String) (psep : ParserDescr) (allowTrailingSep : Bool := false)
  | unicodeSymbol (val asciiVal : String) (preserveForPP : Bool)
instance : Inhabited ParserDescr := ⟨ParserDescr.symbol ""⟩
abbrev TrailingParserDescr := ParserDescr

/-! ## The macro monad -/
abbrev MacroScope := Nat
class MonadRef (m : Type → Type) where
  getRef : m Syntax
  withRef {α} : Syntax → m α → m α
export MonadRef (getRef)
@[always_inline, inline] def withRef [Monad m] [MonadRef m] {α} (ref : Syntax) (x : m α) : m α :=
  bind getRef fun oldRef => MonadRef.withRef (replaceRef ref oldRef) x
class MonadQuotation (m : Type → Type) extends MonadRef m where
  getCurrMacroScope : m MacroScope
  getContext : m Name
  withFreshMacroScope {α : Type} : m α → m α
export MonadQuotation (getCurrMacroScope withFreshMacroScope)
@[inline] def MonadRef.mkInfoFromRefPos [Monad m] [MonadRef m] : m SourceInfo :=
  bind getRef fun ref => pure (SourceInfo.fromRef ref)

namespace Macro
opaque MethodsRefPointed : NonemptyType.{0}
def MethodsRef : Type := MethodsRefPointed.type
instance : Nonempty MethodsRef := MethodsRefPointed.property
structure Context where
  methods : MethodsRef
  quotContext : Name
  currMacroScope : MacroScope
  currRecDepth : Nat := 0
  maxRecDepth : Nat := 512
  ref : Syntax
inductive Exception where
  | error : Syntax → String → Exception
  | unsupportedSyntax : Exception
instance : Inhabited Exception := ⟨.unsupportedSyntax⟩
structure State where
  macroScope : MacroScope
  traceMsgs : List (Prod Name String) := List.nil
  expandedMacroDecls : List Name := List.nil
end Macro
abbrev MacroM := ReaderT Macro.Context (EStateM Macro.Exception Macro.State)
abbrev Macro := Syntax → MacroM Syntax
namespace Macro
@[always_inline] instance : MonadQuotation MacroM where
  getRef := fun ctx s => .ok ctx.ref s
  withRef ref x := fun ctx s => x { ctx with ref := ref } s
  getCurrMacroScope := fun ctx s => .ok ctx.currMacroScope s
  getContext := fun ctx s => .ok ctx.quotContext s
  withFreshMacroScope x := fun ctx s =>
    x { ctx with currMacroScope := s.macroScope } { s with macroScope := HAdd.hAdd s.macroScope 1 }
def throwUnsupported {α} : MacroM α := fun _ s => .error .unsupportedSyntax s
def throwError {α} (msg : String) : MacroM α := fun ctx s => .error (.error ctx.ref msg) s
def throwErrorAt {α} (ref : Syntax) (msg : String) : MacroM α := fun _ s => .error (.error ref msg) s
end Macro

namespace PrettyPrinter
abbrev UnexpandM := ReaderT Syntax (EStateM Unit Unit)
abbrev Unexpander := Syntax → UnexpandM Syntax
instance : MonadQuotation UnexpandM where
  getRef := fun ref s => .ok ref s
  withRef ref x := fun _ s => x ref s
  getCurrMacroScope := fun _ s => .ok 0 s
  getContext := fun _ s => .ok `_fakeMod s
  withFreshMacroScope x := x
end PrettyPrinter
end Lean
