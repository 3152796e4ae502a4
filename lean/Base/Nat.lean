/-
Base.Nat : the handful of arithmetic and list facts that the protocol proofs use.
-/
prelude
import Base.Logic
set_option autoImplicit true
set_option linter.all false
universe u v w

namespace Nat
@[simp] theorem add_zero (n : Nat) : n + 0 = n := rfl
theorem add_succ (n m : Nat) : n + succ m = succ (n + m) := rfl
@[simp] theorem zero_add (n : Nat) : 0 + n = n := by
  induction n with
  | zero => rfl
  | succ n ih => rw [add_succ, ih]
theorem succ_add (n m : Nat) : succ n + m = succ (n + m) := by
  induction m with
  | zero => rfl
  | succ m ih => rw [add_succ, ih, add_succ]
protected theorem add_comm (n m : Nat) : n + m = m + n := by
  induction m with
  | zero => rw [zero_add]; rfl
  | succ m ih => rw [add_succ, succ_add, ih]
protected theorem add_assoc (a b c : Nat) : (a + b) + c = a + (b + c) := by
  induction c with
  | zero => rfl
  | succ c ih => rw [add_succ, ih]; rfl
theorem le_add_right (n m : Nat) : n ≤ n + m := by
  induction m with
  | zero => exact Nat.le_refl n
  | succ m ih => exact Nat.le_succ_of_le ih
theorem le_add_left (n m : Nat) : n ≤ m + n := by
  rw [Nat.add_comm]; exact le_add_right n m
theorem add_le_add_left {n m : Nat} (h : n ≤ m) (k : Nat) : k + n ≤ k + m := by
  induction h with
  | refl => exact Nat.le_refl _
  | step _ ih => exact Nat.le_succ_of_le ih
theorem add_le_add_right {n m : Nat} (h : n ≤ m) (k : Nat) : n + k ≤ m + k := by
  rw [Nat.add_comm n, Nat.add_comm m]; exact add_le_add_left h k
protected theorem add_le_add {a b c d : Nat} (h : a ≤ b) (h' : c ≤ d) : a + c ≤ b + d :=
  Nat.le_trans (add_le_add_right h c) (add_le_add_left h' b)
theorem add_lt_add_left {n m : Nat} (h : n < m) (k : Nat) : k + n < k + m := add_le_add_left (n := succ n) h k
theorem add_lt_add_right {n m : Nat} (h : n < m) (k : Nat) : n + k < m + k := by
  rw [Nat.add_comm n, Nat.add_comm m]; exact add_lt_add_left h k
theorem le_of_add_le_add_right {a b k : Nat} (h : a + k ≤ b + k) : a ≤ b := by
  induction k with
  | zero => exact h
  | succ k ih => exact ih (Nat.le_of_succ_le_succ h)
theorem le_of_add_le_add_left {a b k : Nat} (h : k + a ≤ k + b) : a ≤ b := by
  rw [Nat.add_comm k, Nat.add_comm k] at h; exact le_of_add_le_add_right h
theorem succ_mul (n m : Nat) : succ n * m = n * m + m := by
  induction m with
  | zero => rfl
  | succ m ih =>
    show succ n * m + succ n = (n * m + n) + succ m
    rw [ih, add_succ, add_succ, Nat.add_assoc, Nat.add_assoc, Nat.add_comm m n]
theorem zero_mul (n : Nat) : 0 * n = 0 := by
  induction n with
  | zero => rfl
  | succ n ih => exact ih
theorem one_mul (n : Nat) : 1 * n = n := by rw [succ_mul, zero_mul, zero_add]
protected theorem mul_comm (n m : Nat) : n * m = m * n := by
  induction m with
  | zero => rw [zero_mul]; rfl
  | succ m ih => rw [succ_mul, ← ih]; rfl
protected theorem mul_add (a b c : Nat) : a * (b + c) = a * b + a * c := by
  induction c with
  | zero => rfl
  | succ c ih =>
    show a * (b + c) + a = a * b + (a * c + a)
    rw [ih, Nat.add_assoc]
protected theorem mul_assoc (a b c : Nat) : (a * b) * c = a * (b * c) := by
  induction c with
  | zero => rfl
  | succ c ih =>
    show a * b * c + a * b = a * (b * c + b)
    rw [ih, Nat.mul_add]
theorem mul_le_mul_right {n m : Nat} (k : Nat) (h : n ≤ m) : n * k ≤ m * k := by
  induction h with
  | refl => exact Nat.le_refl _
  | step _ ih => rw [succ_mul]; exact Nat.le_trans ih (le_add_right _ _)
theorem not_le_of_gt {n m : Nat} (h : n < m) : ¬ m ≤ n := fun h' => Nat.lt_irrefl n (Nat.lt_of_lt_of_le h h')
theorem lt_of_not_le {n m : Nat} (h : ¬ m ≤ n) : n < m := (Nat.lt_or_ge n m).elim (fun h => h) (fun h' => absurd h' h)
theorem not_lt_of_le {n m : Nat} (h : m ≤ n) : ¬ n < m := fun h' => not_le_of_gt h' h
protected theorem le_of_lt {n m : Nat} (h : n < m) : n ≤ m := Nat.le_trans (Nat.le_succ n) h
protected theorem le_of_eq {n m : Nat} (h : n = m) : n ≤ m := h ▸ Nat.le_refl n
theorem le_of_not_lt {n m : Nat} (h : ¬ n < m) : m ≤ n := (Nat.lt_or_ge n m).elim (fun h' => absurd h' h) (fun h => h)
/-- `x < y` as a Boolean the kernel evaluates with GMP. -/
def blt (x y : Nat) : Bool := ble (succ x) y
theorem blt_eq_true_eq (n m : Nat) : (Nat.blt n m = true) = (n < m) := Nat.ble_eq_true_eq _ _
/-- Strong induction, from `Nat.rec` alone. -/
theorem strongRec {P : Nat → Prop} (h : ∀ n, (∀ m, m < n → P m) → P n) (n : Nat) : P n := by
  have aux : ∀ n m, m < n → P m := by
    intro n
    induction n with
    | zero => intro m hm; exact absurd hm (Nat.not_lt_zero m)
    | succ n ih =>
      intro m hm
      cases Nat.eq_or_lt_of_le (Nat.le_of_lt_succ hm) with
      | inl e => subst e; exact h _ ih
      | inr l => exact ih m l
  exact h n (aux n)
end Nat

namespace List
inductive Mem (a : α) : List α → Prop
  | head (as : List α) : Mem a (a :: as)
  | tail (b : α) {as : List α} : Mem a as → Mem a (b :: as)
end List
instance List.instMembership : Membership α (List α) := ⟨fun l a => List.Mem a l⟩
theorem List.not_mem_nil (a : α) : ¬ a ∈ ([] : List α) := fun h => nomatch h
theorem List.mem_cons (a b : α) (l : List α) : a ∈ b :: l ↔ a = b ∨ a ∈ l :=
  ⟨fun h => match h with | .head _ => .inl rfl | .tail _ h => .inr h,
   fun h => match h with | .inl e => e ▸ .head _ | .inr h => .tail _ h⟩

namespace List
/-- `all f l` and `any f l` are single recursor applications: cheap for the kernel. -/
noncomputable def all (f : α → Bool) (l : List α) : Bool := List.rec true (fun a _ ih => f a && ih) l
noncomputable def any (f : α → Bool) (l : List α) : Bool := List.rec false (fun a _ ih => f a || ih) l
/-- Append and map for the kernel (`List.append` is compiled through `brecOn`: 3x slower to reduce). -/
noncomputable def cat (a b : List α) : List α := List.rec b (fun x _ ih => x :: ih) a
noncomputable def mapK (f : α → β) (l : List α) : List β := List.rec [] (fun a _ ih => f a :: ih) l
theorem all_eq_true (f : α → Bool) (l : List α) : all f l = true ↔ ∀ a, a ∈ l → f a = true := by
  induction l with
  | nil => exact ⟨fun _ a h => absurd h (not_mem_nil a), fun _ => rfl⟩
  | cons b l ih =>
    have e : all f (b :: l) = (f b && all f l) := rfl
    rw [e, Bool.and_eq_true]
    refine ⟨fun h a ha => ?_, fun h => ⟨h b (.head _), ih.mpr (fun a ha => h a (.tail _ ha))⟩⟩
    cases (mem_cons a b l).mp ha with
    | inl e => subst e; exact h.left
    | inr ha => exact ih.mp h.right a ha
theorem any_eq_true (f : α → Bool) (l : List α) : any f l = true → ∃ a, a ∈ l ∧ f a = true := by
  induction l with
  | nil => exact fun h => Bool.noConfusion h
  | cons b l ih =>
    have e : any f (b :: l) = (f b || any f l) := rfl
    rw [e, Bool.or_eq_true]
    intro h
    cases h with
    | inl h => exact ⟨b, .head _, h⟩
    | inr h => exact (ih h).elim (fun a ha => ⟨a, .tail _ ha.left, ha.right⟩)
/-- Two halves make a whole (lets Lean check pieces of a certificate in parallel). -/
theorem all_cat {f : α → Bool} {a b : List α} (ha : a.all f = true) (hb : b.all f = true) :
    (cat a b).all f = true := by
  induction a with
  | nil => exact hb
  | cons x a ih =>
    have h := (Bool.and_eq_true (f x) (a.all f)).mp ha
    exact (Bool.and_eq_true (f x) _).mpr ⟨h.left, ih h.right⟩
theorem mapK_nil (f : α → β) : mapK f [] = [] := rfl
theorem mapK_cons (f : α → β) (a : α) (l : List α) : mapK f (a :: l) = f a :: mapK f l := rfl
-- The elaborator must not unfold payloads; the kernel ignores this attribute.
attribute [irreducible] cat mapK
end List
