/-
Base.Digits : an array of small counts inside one natural number.

Entry `c` of the array `x` is digit `c` of `x` in base `radix`. Adding `radix ^ c` adds one to entry `c` and, as long
as that digit does not overflow, changes no other. Both operations are a few GMP calls for the kernel.
-/
prelude
import Base.NatSpec
import Base.Sum
set_option autoImplicit true
set_option linter.all false

/-! ## Quotients -/
namespace Nat
theorem mul_lt_cancel {y q q' r r' : Nat} (h : y * q + r = y * q' + r') (hr' : r' < y) : ¬ q' < q := by
  intro hq
  have step : y * q' + y ≤ y * q := by
    have e : y * q' + y = y * succ q' := rfl
    rw [e, Nat.mul_comm y, Nat.mul_comm y]
    exact mul_le_mul_right y hq
  have le : y * q' + y ≤ y * q' + r' := by rw [← h]; exact Nat.le_trans step (le_add_right _ _)
  exact not_le_of_gt hr' (le_of_add_le_add_left le)

theorem euclid_unique {y q q' r r' : Nat} (h : y * q + r = y * q' + r') (hr : r < y) (hr' : r' < y) :
    q = q' ∧ r = r' := by
  have e : q = q' := Nat.le_antisymm (le_of_not_lt (mul_lt_cancel h hr')) (le_of_not_lt (mul_lt_cancel h.symm hr))
  subst e
  exact ⟨rfl, Nat.le_antisymm (le_of_add_le_add_left (Nat.le_of_eq h)) (le_of_add_le_add_left (Nat.le_of_eq h.symm))⟩

theorem div_mod_eq {x y q r : Nat} (h : x = y * q + r) (hr : r < y) : x / y = q ∧ x % y = r := by
  have spec := Spec.div_mod x y (Nat.lt_of_le_of_lt (zero_le r) hr)
  exact euclid_unique (spec.left.trans h) spec.right hr

theorem div_div {x a b : Nat} (ha : 0 < a) (hb : 0 < b) : x / a / b = x / (b * a) := by
  have h1 := Spec.div_mod x a ha
  have h2 := Spec.div_mod (x / a) b hb
  refine (div_mod_eq (q := x / a / b) (r := a * (x / a % b) + x % a) ?_ ?_).left.symm
  · rw [← Nat.add_assoc, Nat.mul_comm b a, Nat.mul_assoc, ← Nat.mul_add, h2.left, h1.left]
  · refine Nat.lt_of_lt_of_le (add_lt_add_left h1.right _) ?_
    have e : a * (x / a % b) + a = a * succ (x / a % b) := rfl
    rw [e, Nat.mul_comm a]
    exact mul_le_mul_right a h2.right

theorem pow_pos {a : Nat} (ha : 0 < a) (n : Nat) : 0 < Nat.pow a n := by
  induction n with
  | zero => exact Nat.zero_lt_succ 0
  | succ n ih => exact Nat.lt_of_lt_of_le ih (by
      show Nat.pow a n ≤ Nat.pow a n * a
      cases a with
      | zero => exact absurd ha (Nat.lt_irrefl 0)
      | succ a => exact le_add_left _ _)
end Nat

/-! ## Digits -/
namespace Digits
/-- 2^24: no count in a program comes near it. -/
@[reducible] def radix : Nat := nat_lit 16777216

noncomputable def digit (c x : Nat) : Nat := Nat.mod (Nat.div x (Nat.pow (nat_lit 16777216) c)) (nat_lit 16777216)

theorem radix_pos : 0 < radix := Nat.le_of_ble_eq_true rfl

theorem digit_zero (x : Nat) : digit 0 x = x % radix := by
  show (x / 1) % radix = x % radix
  rw [(Nat.div_mod_eq (x := x) (y := 1) (q := x) (r := 0) (by rw [Nat.one_mul]; rfl) (Nat.zero_lt_succ 0)).left]

theorem digit_succ (c x : Nat) : digit (Nat.succ c) x = digit c (x / radix) := by
  show (x / (Nat.pow radix c * radix)) % radix = ((x / radix) / Nat.pow radix c) % radix
  rw [Nat.div_div radix_pos (Nat.pow_pos radix_pos c)]

theorem digit_of_zero (c : Nat) : digit c 0 = 0 := by
  have h : ∀ y, 0 < y → 0 / y = 0 ∧ 0 % y = 0 := fun y hy => Nat.div_mod_eq (q := 0) (r := 0) rfl hy
  show (0 / Nat.pow radix c) % radix = 0
  rw [(h _ (Nat.pow_pos radix_pos c)).left, (h _ radix_pos).right]

/-- Incrementing entry `c`. -/
theorem digit_add (k : Nat) : ∀ (c x : Nat), digit c x + 1 < radix →
    digit k (x + Nat.pow radix c) = digit k x + cond (Nat.beq c k) 1 0 := by
  induction k with
  | zero =>
    intro c x h
    rw [digit_zero, digit_zero]
    have spec := Nat.Spec.div_mod x radix radix_pos
    cases c with
    | zero =>
      rw [digit_zero] at h
      refine (Nat.div_mod_eq (q := x / radix) ?_ h).right
      rw [← Nat.add_assoc, spec.left]
    | succ c =>
      refine (Nat.div_mod_eq (q := x / radix + Nat.pow radix c) ?_ spec.right).right
      rw [Nat.mul_add, Nat.add_assoc, Nat.add_comm (radix * Nat.pow radix c), ← Nat.add_assoc, spec.left]
      show x + Nat.pow radix c * radix = _
      rw [Nat.mul_comm]
  | succ k ih =>
    intro c x h
    rw [digit_succ, digit_succ]
    have spec := Nat.Spec.div_mod x radix radix_pos
    cases c with
    | zero =>
      rw [digit_zero] at h
      have e : (x + Nat.pow radix 0) / radix = x / radix := by
        refine (Nat.div_mod_eq (r := x % radix + 1) ?_ h).left
        rw [← Nat.add_assoc, spec.left]
        rfl
      exact congrArg (digit k) e
    | succ c =>
      have e : (x + Nat.pow radix (Nat.succ c)) / radix = x / radix + Nat.pow radix c := by
        refine (Nat.div_mod_eq ?_ spec.right).left
        rw [Nat.mul_add, Nat.add_assoc, Nat.add_comm (radix * Nat.pow radix c), ← Nat.add_assoc, spec.left]
        show x + Nat.pow radix c * radix = _
        rw [Nat.mul_comm]
      rw [e]
      rw [digit_succ] at h
      exact ih c (x / radix) h

/-! ## Counting the occurrences of keys -/
/-- Increment the entry of every key of a list. -/
noncomputable def addAll (l : List Nat) (x : Nat) : Nat :=
  List.rec x (fun a _ ih => Nat.add ih (Nat.pow (nat_lit 16777216) a)) l

/-- No digit overflows on the way. -/
noncomputable def fits (l : List Nat) (x : Nat) : Bool :=
  List.rec true (fun a l ih => Nat.blt (Nat.succ (digit a (addAll l x))) (nat_lit 16777216) && ih) l

/-- The keys of the first `i` lists, counted. -/
noncomputable def histogram (keys : Nat → List Nat) (i : Nat) : Nat :=
  Nat.rec 0 (fun j ih => addAll (keys j) ih) i

theorem digit_addAll (k : Nat) (l : List Nat) (x : Nat) (h : fits l x = true) :
    digit k (addAll l x) = digit k x + count k l := by
  induction l with
  | nil => rfl
  | cons a l ih =>
    have both := (Bool.and_eq_true _ _).mp h
    have step := digit_add k a (addAll l x) ((Nat.blt_eq_true_eq _ _).mp both.left)
    refine step.trans ?_
    rw [ih both.right]
    show digit k x + count k l + cond (Nat.beq a k) 1 0 =
      digit k x + cond (Nat.beq a k) (Nat.succ (count k l)) (count k l)
    cases Nat.beq a k with
    | true => rfl
    | false => rfl

theorem digit_histogram {keys : Nat → List Nat} (k : Nat) {i : Nat}
    (h : ∀ j, j < i → fits (keys j) (histogram keys j) = true) :
    digit k (histogram keys i) = sum i (fun j => count k (keys j)) := by
  induction i with
  | zero => exact digit_of_zero k
  | succ i ih =>
    have here : digit k (histogram keys (Nat.succ i)) = digit k (histogram keys i) + count k (keys i) :=
      digit_addAll k (keys i) _ (h i (Nat.lt_succ_self i))
    rw [here, ih (fun j hj => h j (Nat.lt_trans hj (Nat.lt_succ_self i)))]; rfl

-- The elaborator must not unfold these; the kernel ignores the attribute.
attribute [irreducible] digit histogram

end Digits
