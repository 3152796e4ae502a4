/-
Base.Numbers : natural numbers.

The kernel replaces `Nat.add`, `sub`, `mul`, `div`, `mod`, `pow`, `beq`, `ble`, `shiftRight`, ... on literals by GMP
calls *by name*, whatever is written here. So each of them must really be that function: `Base.NatSpec` proves, for
each one defined here, equations that determine it.
-/
prelude
import Base.Core
set_option autoImplicit true
set_option linter.all false
universe u v w u1 u2

/-! ## Literals, classes of operators, arithmetic -/
set_option genCtorIdx false in
inductive Nat where
  | zero : Nat
  | succ (n : Nat) : Nat
instance : Inhabited Nat where default := Nat.zero

@[extern "lean_obj_tag_nat", tagged_return]
unsafe opaque getObjTagNat {α : Sort u} (x : @& α) : Nat

class OfNat (α : Type u) (_ : Nat) where
  ofNat : α
@[default_instance 100]
instance instOfNatNat (n : Nat) : OfNat Nat n where ofNat := n

class LE (α : Type u) where le : α → α → Prop
class LT (α : Type u) where lt : α → α → Prop
@[reducible] def GE.ge {α : Type u} [LE α] (a b : α) : Prop := LE.le b a
@[reducible] def GT.gt {α : Type u} [LT α] (a b : α) : Prop := LT.lt b a
class Max (α : Type u) where max : α → α → α
export Max (max)
class Min (α : Type u) where min : α → α → α
export Min (min)
class Trans (r : α → β → Sort u) (s : β → γ → Sort v) (t : outParam (α → γ → Sort w)) where
  trans : r a b → s b c → t a c
export Trans (trans)
instance (r : α → γ → Sort u) : Trans Eq r r where trans heq h' := heq ▸ h'
instance (r : α → β → Sort u) : Trans r Eq r where trans h' heq := heq ▸ h'

class HAdd (α : Type u) (β : Type v) (γ : outParam (Type w)) where hAdd : α → β → γ
class HSub (α : Type u) (β : Type v) (γ : outParam (Type w)) where hSub : α → β → γ
class HMul (α : Type u) (β : Type v) (γ : outParam (Type w)) where hMul : α → β → γ
class HDiv (α : Type u) (β : Type v) (γ : outParam (Type w)) where hDiv : α → β → γ
class HMod (α : Type u) (β : Type v) (γ : outParam (Type w)) where hMod : α → β → γ
class HPow (α : Type u) (β : Type v) (γ : outParam (Type w)) where hPow : α → β → γ
class HAppend (α : Type u) (β : Type v) (γ : outParam (Type w)) where hAppend : α → β → γ
class HOrElse (α : Type u) (β : Type v) (γ : outParam (Type w)) where hOrElse : α → (Unit → β) → γ
class HAndThen (α : Type u) (β : Type v) (γ : outParam (Type w)) where hAndThen : α → (Unit → β) → γ
class HAnd (α : Type u) (β : Type v) (γ : outParam (Type w)) where hAnd : α → β → γ
class HXor (α : Type u) (β : Type v) (γ : outParam (Type w)) where hXor : α → β → γ
class HOr (α : Type u) (β : Type v) (γ : outParam (Type w)) where hOr : α → β → γ
class HShiftLeft (α : Type u) (β : Type v) (γ : outParam (Type w)) where hShiftLeft : α → β → γ
class HShiftRight (α : Type u) (β : Type v) (γ : outParam (Type w)) where hShiftRight : α → β → γ
class Add (α : Type u) where add : α → α → α
class Sub (α : Type u) where sub : α → α → α
class Mul (α : Type u) where mul : α → α → α
class Div (α : Type u) where div : α → α → α
class Mod (α : Type u) where mod : α → α → α
class Pow (α : Type u) (β : Type v) where pow : α → β → α
class NatPow (α : Type u) where pow : α → Nat → α
class Append (α : Type u) where append : α → α → α
class OrElse (α : Type u) where orElse : α → (Unit → α) → α
class AndThen (α : Type u) where andThen : α → (Unit → α) → α
class AndOp (α : Type u) where and : α → α → α
class XorOp (α : Type u) where xor : α → α → α
class OrOp (α : Type u) where or : α → α → α
class ShiftLeft (α : Type u) where shiftLeft : α → α → α
class ShiftRight (α : Type u) where shiftRight : α → α → α
class Neg (α : Type u) where neg : α → α
class Dvd (α : Type _) where dvd : α → α → Prop
@[default_instance] instance instHAdd [Add α] : HAdd α α α where hAdd a b := Add.add a b
@[default_instance] instance instHSub [Sub α] : HSub α α α where hSub a b := Sub.sub a b
@[default_instance] instance instHMul [Mul α] : HMul α α α where hMul a b := Mul.mul a b
@[default_instance] instance instHDiv [Div α] : HDiv α α α where hDiv a b := Div.div a b
@[default_instance] instance instHMod [Mod α] : HMod α α α where hMod a b := Mod.mod a b
@[default_instance] instance instHPow [Pow α β] : HPow α β α where hPow a b := Pow.pow a b
@[default_instance] instance instPowNat [NatPow α] : Pow α Nat where pow a b := NatPow.pow a b
@[default_instance] instance instHAppendOfAppend [Append α] : HAppend α α α where hAppend a b := Append.append a b
@[default_instance] instance instHOrElse [OrElse α] : HOrElse α α α where hOrElse a b := OrElse.orElse a b
@[default_instance] instance instHAndOfAndOp [AndOp α] : HAnd α α α where hAnd a b := AndOp.and a b
@[default_instance] instance instHXorOfXorOp [XorOp α] : HXor α α α where hXor a b := XorOp.xor a b
@[default_instance] instance instHOrOfOrOp [OrOp α] : HOr α α α where hOr a b := OrOp.or a b
@[default_instance] instance instHShiftLeftOfShiftLeft [ShiftLeft α] : HShiftLeft α α α where
  hShiftLeft a b := ShiftLeft.shiftLeft a b
@[default_instance] instance instHShiftRightOfShiftRight [ShiftRight α] : HShiftRight α α α where
  hShiftRight a b := ShiftRight.shiftRight a b
class Membership (α : outParam (Type u)) (γ : Type v) where mem : γ → α → Prop
class EmptyCollection (α : Type u) where emptyCollection : α
class Singleton (α : outParam (Type u)) (β : Type v) where singleton : α → β
class Insert (α : outParam (Type u)) (γ : Type v) where insert : α → γ → γ

set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_add", implicit_reducible]
protected def Nat.add : (@& Nat) → (@& Nat) → Nat
  | n, .zero => n
  | n, .succ m => .succ (Nat.add n m)
instance instAddNat : Add Nat where add := Nat.add
attribute [match_pattern] Nat.add Add.add HAdd.hAdd Neg.neg Mul.mul HMul.hMul

set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_mul", implicit_reducible]
protected def Nat.mul : (@& Nat) → (@& Nat) → Nat
  | _, 0 => 0
  | n, .succ m => Nat.add (Nat.mul n m) n
instance instMulNat : Mul Nat where mul := Nat.mul

set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_pow", implicit_reducible]
protected def Nat.pow (m : @& Nat) : (@& Nat) → Nat
  | 0 => 1
  | .succ n => Nat.mul (Nat.pow m n) m
instance instNatPowNat : NatPow Nat := ⟨Nat.pow⟩

set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_dec_eq", implicit_reducible]
def Nat.beq : (@& Nat) → (@& Nat) → Bool
  | .zero, .zero => true
  | .zero, .succ _ => false
  | .succ _, .zero => false
  | .succ n, .succ m => beq n m

theorem Nat.eq_of_beq_eq_true : {n m : Nat} → Eq (beq n m) true → Eq n m
  | .zero, .zero, _ => rfl
  | .zero, .succ _, h => Bool.noConfusion h
  | .succ _, .zero, h => Bool.noConfusion h
  | .succ n, .succ m, h =>
    have ih : Eq n m := eq_of_beq_eq_true (n := n) (m := m) h
    ih ▸ rfl
theorem Nat.beq_self : (n : Nat) → Eq (beq n n) true
  | .zero => rfl
  | .succ n => beq_self n
theorem noConfusion_of_Nat {α : Sort u} (f : α → Nat) {a b : α} (h : Eq a b) :
    (Nat.beq (f a) (f b)).rec False True :=
  have eqs : Eq (Nat.beq (f a) (f b)) true := h ▸ Nat.beq_self (f a)
  eqs.symm ▸ True.intro
theorem Nat.ne_of_beq_eq_false {n m : Nat} (h : Eq (beq n m) false) : Not (Eq n m) :=
  fun e => Bool.noConfusion ((e ▸ h : Eq (beq n n) false).symm.trans (beq_self n))

@[extern "lean_nat_dec_eq", implicit_reducible]
protected def Nat.decEq (n m : @& Nat) : Decidable (Eq n m) where
  decide := beq n m
  reflects_decide :=
    match h : beq n m with
    | true => eq_of_beq_eq_true h
    | false => ne_of_beq_eq_false h
@[inline] instance instDecidableEqNat : DecidableEq Nat := Nat.decEq

set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_dec_le", implicit_reducible]
def Nat.ble : (@& Nat) → (@& Nat) → Bool
  | .zero, .zero => true
  | .zero, .succ _ => true
  | .succ _, .zero => false
  | .succ n, .succ m => ble n m

attribute [gen_constructor_elims] Bool
protected inductive Nat.le (n : Nat) : Nat → Prop
  | refl : Nat.le n n
  | step {m} : Nat.le n m → Nat.le n (.succ m)
protected abbrev Nat.lt (n m : Nat) : Prop := Nat.le (.succ n) m
instance instLENat : LE Nat := ⟨Nat.le⟩
instance instLTNat : LT Nat := ⟨Nat.lt⟩

set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_pred", implicit_reducible]
def Nat.pred : (@& Nat) → Nat
  | 0 => 0
  | .succ a => a
set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_sub", implicit_reducible]
protected def Nat.sub : (@& Nat) → (@& Nat) → Nat
  | a, 0 => a
  | a, .succ b => pred (Nat.sub a b)
attribute [gen_constructor_elims] Nat
instance instSubNat : Sub Nat where sub := Nat.sub

theorem Nat.zero_le : (n : Nat) → LE.le 0 n
  | .zero => Nat.le.refl
  | .succ n => Nat.le.step (zero_le n)
theorem Nat.succ_le_succ : {n m : Nat} → LE.le n m → LE.le (Nat.succ n) (Nat.succ m)
  | _, _, Nat.le.refl => Nat.le.refl
  | _, _, Nat.le.step h => Nat.le.step (succ_le_succ h)
protected theorem Nat.le_trans {n m k : Nat} : LE.le n m → LE.le m k → LE.le n k
  | h, Nat.le.refl => h
  | h₁, Nat.le.step h₂ => Nat.le.step (Nat.le_trans h₁ h₂)
theorem Nat.pred_le_pred : {n m : Nat} → LE.le n m → LE.le (pred n) (pred m)
  | _, _, Nat.le.refl => Nat.le.refl
  | 0, .succ _, Nat.le.step h => h
  | .succ _, .succ _, Nat.le.step h => Nat.le_trans (Nat.le.step Nat.le.refl) h
theorem Nat.le_of_succ_le_succ {n m : Nat} (h : LE.le (Nat.succ n) (Nat.succ m)) : LE.le n m :=
  pred_le_pred h
theorem Nat.not_succ_le_zero (n : Nat) (h : LE.le (Nat.succ n) 0) : False := nomatch h
theorem Nat.le_of_ble_eq_true : {n m : Nat} → Eq (Nat.ble n m) true → LE.le n m
  | 0, _, _ => Nat.zero_le _
  | .succ _, .succ _, h => Nat.succ_le_succ (le_of_ble_eq_true h)
theorem Nat.ble_eq_true_of_le : {n m : Nat} → LE.le n m → Eq (Nat.ble n m) true
  | .zero, .zero, _ => rfl
  | .zero, .succ _, _ => rfl
  | .succ _, .zero, h => absurd h (not_succ_le_zero _)
  | .succ n, .succ m, h => ble_eq_true_of_le (n := n) (m := m) (le_of_succ_le_succ h)

@[extern "lean_nat_dec_le"]
instance Nat.decLe (n m : @& Nat) : Decidable (LE.le n m) where
  decide := ble n m
  reflects_decide :=
    match h : ble n m with
    | true => Nat.le_of_ble_eq_true h
    | false => fun hle => Bool.noConfusion ((Nat.ble_eq_true_of_le hle).symm.trans h)
@[extern "lean_nat_dec_lt"]
instance Nat.decLt (n m : @& Nat) : Decidable (LT.lt n m) := decLe (Nat.succ n) m

/-! ## Order facts that the compilers for matching, recursion and literals ask for -/
theorem Nat.not_lt_zero (n : Nat) : Not (LT.lt n 0) := fun h => not_succ_le_zero n h
theorem Nat.zero_lt_succ (n : Nat) : LT.lt 0 (Nat.succ n) := succ_le_succ (zero_le n)
theorem Nat.succ_pos (n : Nat) : LT.lt 0 (Nat.succ n) := zero_lt_succ n
theorem Nat.le_succ (n : Nat) : LE.le n (Nat.succ n) := Nat.le.step Nat.le.refl
theorem Nat.le_succ_of_le {n m : Nat} (h : LE.le n m) : LE.le n (Nat.succ m) := Nat.le.step h
protected theorem Nat.le_refl (n : Nat) : LE.le n n := Nat.le.refl
theorem Nat.lt_succ_self (n : Nat) : LT.lt n (Nat.succ n) := Nat.le.refl
theorem Nat.le_of_lt_succ {m n : Nat} (h : LT.lt m (Nat.succ n)) : LE.le m n := le_of_succ_le_succ h
theorem Nat.lt_succ_of_le {m n : Nat} (h : LE.le m n) : LT.lt m (Nat.succ n) := succ_le_succ h
protected theorem Nat.lt_of_lt_of_le {n m k : Nat} (h : LT.lt n m) (h' : LE.le m k) : LT.lt n k :=
  Nat.le_trans h h'
protected theorem Nat.lt_of_le_of_lt {n m k : Nat} (h : LE.le n m) (h' : LT.lt m k) : LT.lt n k :=
  Nat.le_trans (succ_le_succ h) h'
protected theorem Nat.lt_trans {n m k : Nat} (h : LT.lt n m) (h' : LT.lt m k) : LT.lt n k :=
  Nat.le_trans (Nat.le.step h) h'
theorem Nat.not_succ_le_self : (n : Nat) → Not (LE.le (Nat.succ n) n)
  | .zero => not_succ_le_zero _
  | .succ n => fun h => not_succ_le_self n (le_of_succ_le_succ h)
protected theorem Nat.lt_irrefl (n : Nat) : Not (LT.lt n n) := not_succ_le_self n
protected theorem Nat.le_antisymm : {n m : Nat} → LE.le n m → LE.le m n → Eq n m
  | _, _, Nat.le.refl, _ => rfl
  | n, _, Nat.le.step h, h' => absurd (Nat.lt_of_le_of_lt h h') (Nat.lt_irrefl n)
protected theorem Nat.eq_or_lt_of_le : {n m : Nat} → LE.le n m → Or (Eq n m) (LT.lt n m)
  | _, _, Nat.le.refl => Or.inl rfl
  | _, _, Nat.le.step h => Or.inr (succ_le_succ h)
protected theorem Nat.lt_or_ge (n : Nat) : (m : Nat) → Or (LT.lt n m) (GE.ge n m)
  | .zero => Or.inr (zero_le n)
  | .succ m => match Nat.lt_or_ge n m with
    | .inl h => Or.inl (Nat.le.step h)
    | .inr h => match Nat.eq_or_lt_of_le h with
      | .inl e => Or.inl (e ▸ Nat.le.refl)
      | .inr l => Or.inr l
theorem Nat.pred_le : ∀ (n : Nat), LE.le (Nat.pred n) n
  | .zero => Nat.le.refl
  | .succ n => le_succ n
theorem Nat.sub_le (n : Nat) : ∀ (m : Nat), LE.le (HSub.hSub n m) n
  | .zero => Nat.le.refl
  | .succ m => Nat.le_trans (pred_le _) (sub_le n m)
theorem Nat.succ_sub_succ_eq_sub (n : Nat) : ∀ m, Eq (HSub.hSub (Nat.succ n) (Nat.succ m)) (HSub.hSub n m)
  | .zero => rfl
  | .succ m => congrArg pred (succ_sub_succ_eq_sub n m)
theorem Nat.sub_lt : ∀ {n m : Nat}, LT.lt 0 n → LT.lt 0 m → LT.lt (HSub.hSub n m) n
  | 0, _, h, _ => absurd h (Nat.lt_irrefl 0)
  | .succ _, 0, _, h => absurd h (Nat.lt_irrefl 0)
  | .succ n, .succ m, _, _ =>
    Eq.symm (succ_sub_succ_eq_sub n m) ▸ (lt_succ_of_le (sub_le n m) : LT.lt (HSub.hSub n m) (Nat.succ n))
/-- Quotient and remainder by `succ y`, by repeated subtraction; `fuel` bounds the number of steps. -/
def Nat.divLoop (y : Nat) : (fuel x : Nat) → Nat
  | .zero, _ => .zero
  | .succ fuel, x => cond (Nat.ble (.succ y) x) (.succ (divLoop y fuel (Nat.sub x (.succ y)))) .zero
def Nat.modLoop (y : Nat) : (fuel x : Nat) → Nat
  | .zero, x => x
  | .succ fuel, x => cond (Nat.ble (.succ y) x) (modLoop y fuel (Nat.sub x (.succ y))) x

set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_div"]
protected def Nat.div (x : @& Nat) : (y : @& Nat) → Nat
  | .zero => .zero
  | .succ y => Nat.divLoop y x x
instance Nat.instDiv : Div Nat := ⟨Nat.div⟩
set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_mod"]
protected def Nat.mod (x : @& Nat) : (y : @& Nat) → Nat
  | .zero => x
  | .succ y => Nat.modLoop y x x
instance Nat.instMod : Mod Nat := ⟨Nat.mod⟩

set_option bootstrap.genMatcherCode false in
@[extern "lean_nat_shiftr"]
def Nat.shiftRight : (@& Nat) → (@& Nat) → Nat
  | n, .zero => n
  | n, .succ m => HDiv.hDiv (Nat.shiftRight n m) 2
instance instShiftRightNat : ShiftRight Nat := ⟨Nat.shiftRight⟩
