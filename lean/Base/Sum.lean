/-
Base.Sum : finite sums of natural numbers, and counting in lists.
-/
prelude
import Base.Nat
set_option autoImplicit true
set_option linter.all false

/-- `f 0 + ... + f (n - 1)`. -/
noncomputable def sum (n : Nat) (f : Nat → Nat) : Nat := Nat.rec 0 (fun i ih => ih + f i) n

/-- How often `c` occurs in a list. -/
noncomputable def count (c : Nat) (l : List Nat) : Nat :=
  List.rec 0 (fun a _ ih => cond (Nat.beq a c) (Nat.succ ih) ih) l

namespace Sum

theorem zero (f : Nat → Nat) : sum 0 f = 0 := rfl
theorem succ (n : Nat) (f : Nat → Nat) : sum (Nat.succ n) f = sum n f + f n := rfl

theorem le {n : Nat} {f g : Nat → Nat} (h : ∀ i, i < n → f i ≤ g i) : sum n f ≤ sum n g := by
  induction n with
  | zero => exact Nat.le_refl _
  | succ n ih =>
    exact Nat.add_le_add (ih (fun i hi => h i (Nat.lt_trans hi (Nat.lt_succ_self n)))) (h n (Nat.lt_succ_self n))

/-- A shorter sum of smaller terms is smaller. -/
theorem le_of_prefix {m n : Nat} {f g : Nat → Nat} (hmn : m ≤ n) (h : ∀ i, i < m → f i ≤ g i) :
    sum m f ≤ sum n g := by
  refine Nat.le_trans (le h) ?_
  clear h
  induction hmn with
  | refl => exact Nat.le_refl _
  | step _ ih => exact Nat.le_trans ih (Nat.le_add_right _ _)

/-- One strictly smaller term makes the sum strictly smaller. -/
theorem lt {n : Nat} {f g : Nat → Nat} (h : ∀ i, i < n → f i ≤ g i) {a : Nat} (ha : a < n) (hlt : f a < g a) :
    sum n f < sum n g := by
  induction n with
  | zero => exact absurd ha (Nat.not_lt_zero a)
  | succ n ih =>
    have below : ∀ i, i < n → f i ≤ g i := fun i hi => h i (Nat.lt_trans hi (Nat.lt_succ_self n))
    rw [succ, succ]
    cases Nat.eq_or_lt_of_le (Nat.le_of_lt_succ ha) with
    | inl e => subst e; exact Nat.lt_of_lt_of_le (Nat.add_lt_add_left hlt _) (Nat.add_le_add_right (le below) _)
    | inr l => exact Nat.lt_of_lt_of_le (Nat.add_lt_add_right (ih below l) _) (Nat.add_le_add_left (h n Nat.le.refl) _)

/-- A positive term makes the sum positive, and a positive sum has a positive term. -/
theorem exists_of_pos {n : Nat} {f : Nat → Nat} (h : 0 < sum n f) : ∃ i, i < n ∧ 0 < f i := by
  induction n with
  | zero => exact absurd h (Nat.lt_irrefl 0)
  | succ n ih =>
    cases Nat.eq_or_lt_of_le (Nat.zero_le (f n)) with
    | inr l => exact ⟨n, Nat.lt_succ_self n, l⟩
    | inl e =>
      rw [succ, ← e] at h
      exact (ih h).elim (fun i hi => ⟨i, Nat.lt_trans hi.left (Nat.lt_succ_self n), hi.right⟩)

/-- If the sum grows between `m` and `n`, some term in between is positive. -/
theorem exists_between {m n : Nat} {f : Nat → Nat} (hmn : m ≤ n) (h : sum m f ≠ sum n f) :
    ∃ i, m ≤ i ∧ i < n ∧ 0 < f i := by
  induction hmn with
  | refl => exact absurd rfl h
  | step hle ih =>
    rename_i n
    cases Nat.eq_or_lt_of_le (Nat.zero_le (f n)) with
    | inr l => exact ⟨n, hle, Nat.lt_succ_self n, l⟩
    | inl e =>
      have h' : sum m f ≠ sum n f := by
        intro e'
        apply h
        rw [succ, ← e, e']; rfl
      exact (ih h').elim (fun i hi => ⟨i, hi.left, Nat.lt_trans hi.right.left (Nat.lt_succ_self n), hi.right.right⟩)

/-- Blocks of equal upper bound: at most `e` full blocks, then one block of at most `x`, then nothing. -/
theorem le_blocks {f : Nat → Nat} {total e x : Nat} (before : ∀ d, d < e → f d ≤ total) (at_e : f e ≤ x)
    (after : ∀ d, e < d → f d = 0) (n : Nat) : sum n f ≤ e * total + x := by
  have prefix_le : ∀ n, n ≤ e → sum n f ≤ n * total := by
    intro n
    induction n with
    | zero => intro _; exact Nat.zero_le _
    | succ n ih =>
      intro h
      rw [succ, Nat.succ_mul]
      exact Nat.add_le_add (ih (Nat.le_trans (Nat.le_succ n) h)) (before n h)
  induction n with
  | zero => exact Nat.zero_le _
  | succ n ih =>
    rw [succ]
    cases Nat.lt_or_ge n e with
    | inl l =>
      refine Nat.le_trans ?_ (Nat.le_add_right _ x)
      exact Nat.le_trans (prefix_le (Nat.succ n) l) (Nat.mul_le_mul_right total l)
    | inr g =>
      cases Nat.eq_or_lt_of_le g with
      | inl same => subst same; exact Nat.add_le_add (prefix_le e (Nat.le_refl e)) at_e
      | inr l => rw [after n l]; exact ih

/-- The other direction: `e` full blocks, and at least `x` in block `e`. -/
theorem blocks_le {f : Nat → Nat} {total e x n : Nat} (before : ∀ d, d < e → total ≤ f d) (at_e : x ≤ f e)
    (he : e < n) : e * total + x ≤ sum n f := by
  have prefix_le : ∀ m, m ≤ e → m * total ≤ sum m f := by
    intro m
    induction m with
    | zero => intro _; rw [Nat.zero_mul]; exact Nat.zero_le _
    | succ m ih =>
      intro h
      rw [succ, Nat.succ_mul]
      exact Nat.add_le_add (ih (Nat.le_trans (Nat.le_succ m) h)) (before m h)
  have here : e * total + x ≤ sum (Nat.succ e) f := by
    rw [succ]; exact Nat.add_le_add (prefix_le e (Nat.le_refl e)) at_e
  exact Nat.le_trans here (le_of_prefix he (fun _ _ => Nat.le_refl _))

end Sum
