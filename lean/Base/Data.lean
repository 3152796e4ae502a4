/-
Base.Data : the types of the run-time system (machine words, characters, lists, arrays, strings).

Their shape is interface: literals, syntax trees and interpreted macros are made of them.
-/
prelude
import Base.Numbers
set_option autoImplicit true
set_option linter.all false
universe u v w

structure Fin (n : Nat) where
  mk ::
  val : Nat
  isLt : LT.lt val n
structure BitVec (w : Nat) where
  ofFin ::
  toFin : Fin (HPow.hPow 2 w)
protected def BitVec.ofNatLT {w : Nat} (i : Nat) (p : LT.lt i (HPow.hPow 2 w)) : BitVec w := ⟨⟨i, p⟩⟩
protected def BitVec.toNat (x : BitVec w) : Nat := x.toFin.val

abbrev UInt32.size : Nat := 4294967296
structure UInt32 where
  ofBitVec ::
  toBitVec : BitVec 32
attribute [extern "lean_uint32_of_nat_mk"] UInt32.ofBitVec
attribute [extern "lean_uint32_to_nat"] UInt32.toBitVec
@[extern "lean_uint32_of_nat"]
def UInt32.ofNatLT (n : @& Nat) (h : LT.lt n UInt32.size) : UInt32 := ⟨BitVec.ofNatLT n h⟩
@[extern "lean_uint32_to_nat"]
def UInt32.toNat (n : UInt32) : Nat := n.toBitVec.toNat

abbrev UInt64.size : Nat := 18446744073709551616
structure UInt64 where
  ofBitVec ::
  toBitVec : BitVec 64
attribute [extern "lean_uint64_of_nat_mk"] UInt64.ofBitVec
attribute [extern "lean_uint64_to_nat"] UInt64.toBitVec
@[extern "lean_uint64_of_nat"]
def UInt64.ofNatLT (n : @& Nat) (h : LT.lt n UInt64.size) : UInt64 := ⟨BitVec.ofNatLT n h⟩
instance : Inhabited UInt64 where default := UInt64.ofNatLT 0 (of_decide_eq_true rfl)

abbrev Nat.isValidChar (n : Nat) : Prop := Or (LT.lt n 0xd800) (And (LT.lt 0xdfff n) (LT.lt n 0x110000))
structure Char where
  val : UInt32
  valid : val.toNat.isValidChar
theorem isValidChar_UInt32 {n : Nat} (h : n.isValidChar) : LT.lt n UInt32.size :=
  match h with
  | .inl h => Nat.lt_trans h (of_decide_eq_true rfl)
  | .inr ⟨_, h⟩ => Nat.lt_trans h (of_decide_eq_true rfl)
@[extern "lean_uint32_of_nat"]
def Char.ofNatAux (n : @& Nat) (h : n.isValidChar) : Char := ⟨⟨BitVec.ofNatLT n (isValidChar_UInt32 h)⟩, h⟩
@[noinline, match_pattern]
def Char.ofNat (n : Nat) : Char :=
  dite (n.isValidChar) (fun h => Char.ofNatAux n h)
    (fun _ => { val := ⟨BitVec.ofNatLT 0 (of_decide_eq_true rfl)⟩, valid := Or.inl (of_decide_eq_true rfl) })

inductive Option (α : Type u) where
  | none : Option α
  | some (val : α) : Option α
attribute [unbox] Option
export Option (none some)
instance {α} : Inhabited (Option α) where default := none

@[inline] protected def Option.map (f : α → β) : Option α → Option β
  | some x => some (f x)
  | none => none

inductive List (α : Type u) where
  | nil : List α
  | cons (head : α) (tail : List α) : List α
instance {α} : Inhabited (List α) where default := List.nil
@[implicit_reducible] def List.length : List α → Nat
  | nil => 0
  | cons _ as => HAdd.hAdd (length as) 1
@[specialize] def List.foldl {α : Type u} {β : Type v} (f : α → β → α) : (init : α) → List β → α
  | a, nil => a
  | a, cons b l => foldl f (f a b) l
protected def List.append : (xs ys : List α) → List α
  | nil, bs => bs
  | cons a as, bs => cons a (List.append as bs)
instance : Append (List α) := ⟨List.append⟩
@[specialize] def List.map (f : α → β) : (l : List α) → List β
  | nil => nil
  | cons a as => cons (f a) (map f as)
def List.get {α : Type u} : (as : List α) → Fin as.length → α
  | cons a _, ⟨0, _⟩ => a
  | cons _ as, ⟨.succ i, h⟩ => get as ⟨i, Nat.le_of_succ_le_succ h⟩
def List.concat {α : Type u} : List α → α → List α
  | nil, b => cons b nil
  | cons a as, b => cons a (concat as b)

structure Array (α : Type u) where
  mk ::
  toList : List α
attribute [extern "lean_array_to_list"] Array.toList
attribute [extern "lean_array_mk"] Array.mk
@[match_pattern] abbrev List.toArray (xs : List α) : Array α := .mk xs
@[extern "lean_mk_empty_array_with_capacity"]
def Array.emptyWithCapacity {α : Type u} (c : @& Nat) : Array α where toList := List.nil
@[inline] def Array.empty {α : Type u} : Array α := emptyWithCapacity 0
instance : Inhabited (Array α) := ⟨Array.empty⟩
@[extern "lean_array_get_size", tagged_return]
def Array.size {α : Type u} (a : @& Array α) : Nat := a.toList.length
@[extern "lean_array_fget"]
def Array.getInternal {α : Type u} (a : @& Array α) (i : @& Nat) (h : LT.lt i a.size) : α := a.toList.get ⟨i, h⟩
@[extern "lean_array_fget_borrowed"]
unsafe opaque Array.getInternalBorrowed {α : Type u} (a : @& Array α) (i : @& Nat) (h : LT.lt i a.size) : α :=
  a.toList.get ⟨i, h⟩
@[extern "lean_array_push"]
def Array.push {α : Type u} (a : Array α) (v : α) : Array α where toList := List.concat a.toList v
@[inline] abbrev Array.getD (a : Array α) (i : Nat) (v₀ : α) : α :=
  dite (LT.lt i a.size) (fun h => a.getInternal i h) (fun _ => v₀)
@[extern "lean_array_get_borrowed"]
unsafe opaque Array.get!InternalBorrowed {α : Type u} [@&Inhabited α] (a : @& Array α) (i : @& Nat) : α
@[extern "lean_array_get"]
def Array.get!Internal {α : Type u} [@&Inhabited α] (a : @& Array α) (i : @& Nat) : α := Array.getD a i default

/-- Strings.  The kernel turns a literal into `String.ofList [Char.ofNat .., ..]`. -/
structure String where
  ofList ::
  toList : List Char
attribute [extern "lean_string_mk"] String.ofList
attribute [extern "lean_string_data"] String.toList
instance : Inhabited String := ⟨""⟩
@[extern "lean_string_dec_eq"] opaque String.beq (a b : @& String) : Bool := true
instance : BEq String := ⟨String.beq⟩
@[extern "lean_string_append"] opaque String.append (a : String) (b : @& String) : String
instance : Append String := ⟨String.append⟩
