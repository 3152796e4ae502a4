/-
Base.Core : logic for a Lean library that does not import `Init`.

Equality, connectives, quotients, Booleans and decidability, in `prelude` mode. The names, argument orders and
constructor orders are *interface*: the elaborator, the code generator and the kernel look these constants up by name,
and the order of this file is the order in which those look-ups start. See NOTICE for their origin.
-/
prelude
set_option autoImplicit true
set_option linter.all false

universe u v w u1 u2

/-! ## Markers that the code generator puts where types and proofs were -/
unsafe axiom lcErased : Type
unsafe axiom lcAny : Type
unsafe axiom lcVoid : Type

/-! ## Equality, unit, Bool.  (`casesOn`, `noConfusion`, `brecOn` need these.) -/
set_option bootstrap.inductiveCheckResultingUniverse false in
inductive PUnit : Sort u where
  | unit : PUnit

inductive Eq : α → α → Prop where
  | refl (a : α) : Eq a a

abbrev Eq.ndrec {α : Sort u2} {a : α} {motive : α → Sort u1} (m : motive a) {b : α}
    (h : Eq a b) : motive b := h.rec m

inductive HEq : {α : Sort u} → α → {β : Sort u} → β → Prop where
  | refl (a : α) : HEq a a

inductive Bool : Type where
  | false : Bool
  | true : Bool
export Bool (false true)

@[inline] def id {α : Sort u} (a : α) : α := a
@[inline] def Function.comp {α : Sort u} {β : Sort v} {δ : Sort w}
    (f : β → δ) (g : α → β) : α → δ := fun x => f (g x)
@[inline] def Function.const {α : Sort u} (β : Sort v) (a : α) : β → α := fun _ => a

set_option checkBinderAnnotations false in
abbrev inferInstance {α : Sort u} [i : α] : α := i
set_option checkBinderAnnotations false in
abbrev «inferInstanceAs» (α : Sort u) [i : α] : α := i

abbrev Unit : Type := PUnit
@[match_pattern] abbrev Unit.unit : Unit := PUnit.unit

unsafe axiom lcProof {α : Prop} : α
unsafe axiom lcCast {α : Sort u} {β : Sort v} (a : α) : β
unsafe axiom lcUnreachable {α : Sort u} : α

inductive True : Prop where
  | intro : True
inductive False : Prop
inductive Empty : Type
set_option bootstrap.inductiveCheckResultingUniverse false in
inductive PEmpty : Sort u where

@[implicit_reducible] def Not (a : Prop) : Prop := a → False
@[macro_inline] def False.elim {C : Sort u} (h : False) : C := h.rec
@[macro_inline] def absurd {a : Prop} {b : Sort v} (h₁ : a) (h₂ : Not a) : b := (h₂ h₁).rec

@[match_pattern] def rfl {α : Sort u} {a : α} : Eq a a := Eq.refl a
@[simp] theorem id_eq (a : α) : Eq (id a) a := rfl

theorem Eq.subst {α : Sort u} {motive : α → Prop} {a b : α} (h₁ : Eq a b) (h₂ : motive a) :
    motive b := Eq.ndrec h₂ h₁
@[symm] theorem Eq.symm {α : Sort u} {a b : α} (h : Eq a b) : Eq b a := h ▸ rfl
theorem Eq.trans {α : Sort u} {a b c : α} (h₁ : Eq a b) (h₂ : Eq b c) : Eq a c := h₂ ▸ h₁
abbrev Eq.ndrec_symm {α : Sort u2} {a : α} {motive : α → Sort u1} (m : motive a) {b : α}
    (h : Eq b a) : motive b := h.symm.ndrec m
@[macro_inline] def cast {α β : Sort u} (h : Eq α β) (a : α) : β := h.rec a

theorem congrArg {α : Sort u} {β : Sort v} {a₁ a₂ : α} (f : α → β) (h : Eq a₁ a₂) :
    Eq (f a₁) (f a₂) := h ▸ rfl
theorem congr {α : Sort u} {β : Sort v} {f₁ f₂ : α → β} {a₁ a₂ : α} (h₁ : Eq f₁ f₂)
    (h₂ : Eq a₁ a₂) : Eq (f₁ a₁) (f₂ a₂) := h₁ ▸ h₂ ▸ rfl
theorem congrFun {α : Sort u} {β : α → Sort v} {f g : (x : α) → β x} (h : Eq f g) (a : α) :
    Eq (f a) (g a) := h ▸ rfl

@[match_pattern] def HEq.rfl {α : Sort u} {a : α} : HEq a a := HEq.refl a
theorem eq_of_heq {α : Sort u} {a a' : α} (h : HEq a a') : Eq a a' :=
  have aux : (α β : Sort u) → (a : α) → (b : β) → HEq a b → (h : Eq α β) → Eq (cast h a) b :=
    fun _ _ _ _ h₁ => h₁.rec (fun _ => rfl)
  aux α α a a' h rfl
@[symm] theorem HEq.symm {α β : Sort u} {a : α} {b : β} (h : HEq a b) : HEq b a :=
  h.rec (HEq.refl a)
theorem heq_of_eq {α : Sort u} {a a' : α} (h : Eq a a') : HEq a a' := h ▸ HEq.refl a

/-! ## Products, connectives, quotients -/
structure Prod (α : Type u) (β : Type v) where
  mk ::
  fst : α
  snd : β
attribute [unbox] Prod

structure PProd (α : Sort u) (β : Sort v) where
  fst : α
  snd : β

structure MProd (α β : Type u) where
  fst : α
  snd : β

structure And (a b : Prop) : Prop where
  intro ::
  left : a
  right : b

inductive Or (a b : Prop) : Prop where
  | inl (h : a) : Or a b
  | inr (h : b) : Or a b

structure Iff (a b : Prop) : Prop where
  intro ::
  mp : a → b
  mpr : b → a

/-- The one extensionality axiom for propositions (interface: `propext`). -/
axiom propext {a b : Prop} : Iff a b → Eq a b

init_quot
unsafe axiom Quot.lcInv {α : Sort u} {r : α → α → Prop} (q : Quot r) : α
axiom Quot.sound : ∀ {α : Sort u} {r : α → α → Prop} {a b : α}, r a b → Eq (Quot.mk r a) (Quot.mk r b)

protected abbrev Quot.liftOn {α : Sort u} {β : Sort v} {r : α → α → Prop} (q : Quot r) (f : α → β)
    (c : (a b : α) → r a b → Eq (f a) (f b)) : β := Quot.lift f c q

theorem funext {α : Sort u} {β : α → Sort v} {f g : (x : α) → β x} (h : ∀ x, Eq (f x) (g x)) : Eq f g :=
  have glued : Eq (Quot.mk (fun a b : (x : α) → β x => ∀ x, Eq (a x) (b x)) f) (Quot.mk _ g) := Quot.sound h
  congrArg (fun q => fun x : α => Quot.lift (fun a : (x : α) → β x => a x) (fun _ _ hab => hab x) q) glued

structure Subtype {α : Sort u} (p : α → Prop) where
  val : α
  property : p val

set_option checkBinderAnnotations false in
@[reducible] def optParam (α : Sort u) (default : α) : Sort u := α
@[reducible] def outParam (α : Sort u) : Sort u := α
@[reducible] def semiOutParam (α : Sort u) : Sort u := α
@[reducible] def namedPattern {α : Sort u} (x a : α) (h : Eq x a) : α := a

@[extern "lean_sorry", never_extract]
axiom sorryAx (α : Sort u) (synthetic : Bool) : α

theorem Bool.ne_false_of_eq_true : {b : Bool} → Eq b true → Not (Eq b false)
  | true, _ => fun h => Bool.noConfusion h
  | false, h => Bool.noConfusion h
theorem Bool.ne_true_of_eq_false : {b : Bool} → Eq b false → Not (Eq b true)
  | true, h => Bool.noConfusion h
  | false, _ => fun h => Bool.noConfusion h
theorem Bool.eq_false_of_ne_true : {b : Bool} → Not (Eq b true) → Eq b false
  | true, h => False.elim (h rfl)
  | false, _ => rfl
theorem Bool.eq_true_of_ne_false : {b : Bool} → Not (Eq b false) → Eq b true
  | true, _ => rfl
  | false, h => False.elim (h rfl)

class Inhabited (α : Sort u) where
  default : α
export Inhabited (default)

class inductive Nonempty (α : Sort u) : Prop where
  | intro (val : α) : Nonempty α

axiom Classical.choice {α : Sort u} : Nonempty α → α

instance {α : Sort u} [Inhabited α] : Nonempty α := ⟨default⟩
noncomputable def Classical.ofNonempty {α : Sort u} [Nonempty α] : α := Classical.choice inferInstance
instance {α : Sort u} {β : Sort v} [Nonempty β] : Nonempty (α → β) :=
  Nonempty.intro fun _ => Classical.ofNonempty
instance Pi.instNonempty {α : Sort u} {β : α → Sort v} [(a : α) → Nonempty (β a)] :
    Nonempty ((a : α) → β a) := Nonempty.intro fun _ => Classical.ofNonempty
instance : Inhabited (Sort u) where default := PUnit
instance (α : Sort u) {β : Sort v} [Inhabited β] : Inhabited (α → β) where default := fun _ => default
instance Pi.instInhabited {α : Sort u} {β : α → Sort v} [(a : α) → Inhabited (β a)] :
    Inhabited ((a : α) → β a) where default := fun _ => default
instance : Inhabited Bool := ⟨false⟩
instance : Inhabited PUnit := ⟨PUnit.unit⟩
instance [Inhabited α] [Inhabited β] : Inhabited (Prod α β) := ⟨⟨default, default⟩⟩

structure PLift (α : Sort u) : Type u where
  up ::
  down : α
structure ULift.{r, s} (α : Type s) : Type (max s r) where
  up ::
  down : α
structure PULift.{r, s} (α : Sort s) : Sort (max s r 1) where
  up ::
  down : α
def NonemptyType := Subtype fun α : Type u => Nonempty α
abbrev NonemptyType.type (type : NonemptyType.{u}) : Type u := type.val
instance : Inhabited NonemptyType.{u} where default := ⟨PUnit, ⟨⟨⟩⟩⟩

/-! ## Booleans and decidability -/
@[macro_inline, implicit_reducible] def cond {α : Sort u} (c : Bool) (x y : α) : α :=
  match c with
  | true => x
  | false => y

/- `Bool.and`, `or`, `not` are single recursor applications, so that the kernel
   reduces them in one step. -/
@[implicit_reducible] noncomputable def Bool.or (x y : Bool) : Bool := Bool.rec y true x
@[macro_inline] def Bool.Internal.or (x y : Bool) : Bool := match x with | true => true | false => y
@[implicit_reducible] noncomputable def Bool.and (x y : Bool) : Bool := Bool.rec false y x
@[macro_inline] def Bool.Internal.and (x y : Bool) : Bool := match x with | false => false | true => y
@[implicit_reducible] noncomputable def Bool.not (x : Bool) : Bool := Bool.rec true false x
@[inline] def Bool.Internal.not : Bool → Bool | true => false | false => true
@[csimp] theorem Bool.and_eq_internalAnd : Eq Bool.and Bool.Internal.and :=
  funext (fun x => match x with | true | false => rfl)
@[csimp] theorem Bool.or_eq_internalOr : Eq Bool.or Bool.Internal.or :=
  funext (fun x => match x with | true | false => rfl)
@[csimp] theorem Bool.not_eq_internalNot : Eq Bool.not Bool.Internal.not :=
  funext (fun x => match x with | true | false => rfl)
export Bool (or and not)

@[inline, implicit_reducible] def Bool.beq (a b : Bool) : Bool :=
  match b with
  | false => not a
  | true => a

abbrev Bool.Reflects : Bool → Prop → Prop
  | false, p => Not p
  | true, p => p

class Decidable (p : Prop) where
  intro ::
  decide : Bool
  reflects_decide (p) : decide.Reflects p
attribute [implicit_reducible] Decidable.decide

@[match_pattern] abbrev Decidable.isFalse (h : Not p) : Decidable p := ⟨false, h⟩
@[match_pattern] abbrev Decidable.isTrue (h : p) : Decidable p := ⟨true, h⟩
@[cases_eliminator, induction_eliminator, elab_as_elim]
abbrev Decidable.falseTrueCases {p : Prop} {motive : Decidable p → Sort u}
    (isFalse : ∀ h, motive (isFalse h)) (isTrue : ∀ h, motive (isTrue h))
    (t : Decidable p) : motive t := t.casesOn fun x => x.casesOn isFalse isTrue
export Decidable (isTrue isFalse decide)

abbrev DecidablePred {α : Sort u} (r : α → Prop) := (a : α) → Decidable (r a)
abbrev DecidableRel {α : Sort u} {β : Sort v} (r : α → β → Prop) := (a : α) → (b : β) → Decidable (r a b)
abbrev DecidableEq (α : Sort u) := (a b : α) → Decidable (Eq a b)
def decEq {α : Sort u} [inst : DecidableEq α] (a b : α) : Decidable (Eq a b) := inst a b

/-! All facts about `decide` come from facts about reflected Booleans. -/
theorem Bool.Reflects.eq_true {p : Prop} : {b : Bool} → b.Reflects p → p → Eq b true
  | true, _, _ => rfl
  | false, hn, hp => absurd hp hn
theorem Bool.Reflects.eq_false {p : Prop} : {b : Bool} → b.Reflects p → Not p → Eq b false
  | true, hp, hn => absurd hp hn
  | false, _, _ => rfl
theorem Bool.Reflects.conj {p q : Prop} : {a b : Bool} → a.Reflects p → b.Reflects q → (and a b).Reflects (And p q)
  | true, true, hp, hq => ⟨hp, hq⟩
  | true, false, _, hq => fun h => hq h.right
  | false, _, hp, _ => fun h => hp h.left
theorem Bool.Reflects.disj {p q : Prop} : {a b : Bool} → a.Reflects p → b.Reflects q → (or a b).Reflects (Or p q)
  | true, _, hp, _ => Or.inl hp
  | false, true, _, hq => Or.inr hq
  | false, false, hp, hq => fun h => Or.rec hp hq h
theorem Bool.Reflects.neg {p : Prop} : {a : Bool} → a.Reflects p → (not a).Reflects (Not p)
  | true, hp => fun hn => hn hp
  | false, hn => hn
theorem Bool.Reflects.transport {p : Prop} {b : Bool} (h : b.Reflects p) : {c : Bool} → Eq b c → c.Reflects p
  | _, Eq.refl _ => h
theorem decide_eq_true [inst : Decidable p] (h : p) : Eq (decide p) true := inst.reflects_decide.eq_true h
theorem decide_eq_false [inst : Decidable p] (h : Not p) : Eq (decide p) false := inst.reflects_decide.eq_false h
theorem of_decide_eq_true [inst : Decidable p] (h : Eq (decide p) true) : p :=
  (inst.reflects_decide.transport h : Bool.Reflects true p)
theorem of_decide_eq_false [inst : Decidable p] (h : Eq (decide p) false) : Not p :=
  (inst.reflects_decide.transport h : Bool.Reflects false p)
theorem of_decide_eq_self_eq_true [DecidableEq α] (a : α) : Eq (decide (Eq a a)) true := decide_eq_true rfl

@[macro_inline] instance instDecidableTrue : Decidable True := isTrue ⟨⟩
@[macro_inline] instance instDecidableFalse : Decidable False := isFalse (fun h => h)
@[macro_inline] instance instDecidableAnd {p q} [dp : Decidable p] [dq : Decidable q] : Decidable (And p q) where
  decide := and (decide p) (decide q)
  reflects_decide := dp.reflects_decide.conj dq.reflects_decide
@[macro_inline] instance instDecidableOr [dp : Decidable p] [dq : Decidable q] : Decidable (Or p q) where
  decide := or (decide p) (decide q)
  reflects_decide := dp.reflects_decide.disj dq.reflects_decide
@[inline] instance instDecidableNot [dp : Decidable p] : Decidable (Not p) where
  decide := not (decide p)
  reflects_decide := dp.reflects_decide.neg
@[inline, implicit_reducible] def Bool.decEq (a b : Bool) : Decidable (Eq a b) where
  decide := a.beq b
  reflects_decide := match a, b with
    | false, false => rfl
    | false, true => Bool.noConfusion
    | true, false => Bool.noConfusion
    | true, true => rfl
@[macro_inline] instance instDecidableEqBool : DecidableEq Bool := Bool.decEq

class BEq (α : Type u) where
  beq : α → α → Bool
instance (priority := 500) instBEqOfDecidableEq [DecidableEq α] : BEq α where
  beq a b := decide (Eq a b)

@[macro_inline, implicit_reducible]
def dite {α : Sort u} (c : Prop) [h : Decidable c] (t : c → α) (e : Not c → α) : α :=
  h.decide.casesOn e t h.reflects_decide
@[macro_inline, implicit_reducible]
def ite {α : Sort u} (c : Prop) [h : Decidable c] (t e : α) : α := dite c (fun _ => t) (fun _ => e)
