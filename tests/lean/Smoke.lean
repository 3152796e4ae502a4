/- The foundation carries the tactics, notations and literals that proofs use: one use of each. -/
prelude
import Base.Nat
set_option linter.all false
theorem t2 (p q : Prop) (hp : p) (hq : q) : p ∧ q := by
  constructor
  · exact hp
  · assumption
theorem zadd (n : Nat) : 0 + n = n := by
  induction n with
  | zero => rfl
  | succ n ih =>
    show Nat.succ (0 + n) = Nat.succ n
    rw [ih]
theorem t3 (a b : Nat) (h : a = b) (f : Nat → Nat) : f (0 + b) = f a := by
  simp only [zadd, h]
theorem t4 (a b : Nat) (h : a = b) : b = a := by
  have h2 : b = a := h.symm
  exact h2
theorem t5 : 3 < 5 := by decide
theorem t6 (p q : Prop) (h : p ∨ q) : q ∨ p := by
  cases h with
  | inl h => right; exact h
  | inr h => left; exact h
theorem t8 (a b : Nat) : (if a = b then 1 else 2) < 3 := by
  split
  · decide
  · decide
theorem t9 : 12345678901234567890 * 98765432109876543210 = 1219326311370217952237463801111263526900 := by decide
theorem t10 : [1,2,3].length = 3 := by rfl
theorem t11 (a : Nat) : a = a + 0 := by
  simp

theorem a3 (a b c : Nat) : a + b + c = c + (a + b) := by simp only [Nat.add_comm, Nat.add_assoc]
theorem a3' (a b c : Nat) : a + (b + c) = c + (a + b) := by
  have lc : ∀ a b c : Nat, a + (b + c) = b + (a + c) := by
    intro a b c
    rw [← Nat.add_assoc, Nat.add_comm a b, Nat.add_assoc]
  simp only [Nat.add_comm, Nat.add_assoc, lc]
theorem a4 (a b : Nat) (h : a = b ∧ b = 3) : a = 3 := by
  simp only [h]
theorem a5 (p q : Prop) (hp : p) : p ∨ q := by simp [hp]
theorem a6 (a b : Nat) (h : a = b ∧ b = 3) : a = 3 := by
  simp_all
theorem a7 (f : Nat → Nat) (h : ∀ x, f x = x) : f (f 2) = 2 := by
  simp only [h]
theorem a8 : (3 : Nat) + 4 = 7 := by simp
theorem a9 (x y : Nat) (h : x = y) : ∃ (z : Nat), z = x := ⟨y, h.symm⟩
inductive Tree where | leaf | node (l : Tree) (x : Nat) (r : Tree)
def Tree.size : Tree → Nat | leaf => 0 | node l _ r => l.size + 1 + r.size
def Tree.mirror : Tree → Tree | leaf => leaf | node l x r => node r.mirror x l.mirror
theorem Tree.size_mirror (t : Tree) : t.mirror.size = t.size := by
  induction t with
  | leaf => rfl
  | node l x r ihl ihr =>
    simp only [Tree.mirror, Tree.size, ihl, ihr]
    rw [Nat.add_comm r.size 1, Nat.add_assoc, Nat.add_comm, Nat.add_assoc, Nat.add_comm r.size]
def fib : Nat → Nat | 0 => 0 | 1 => 1 | n+2 => fib n + fib (n+1)
theorem fib10 : fib 10 = 55 := by decide
theorem fibeq (n : Nat) : fib (n+2) = fib n + fib (n+1) := by rw [fib]
structure P where
  x : Nat
  y : Nat
theorem P.ext (a b : P) (h : a.x = b.x) (h' : a.y = b.y) : a = b := by
  cases a; cases b
  simp only at h h'
  rw [h, h']
theorem m (n : Nat) : (match n with | 0 => 1 | _ + 1 => 1) = 1 := by
  split
  · rfl
  · rfl
theorem em' (p : Prop) : ¬¬p → p := by
  intro h
  by_cases hp : p
  · exact hp
  · contradiction
theorem calcT (a b c : Nat) (h : a = b) (h' : b = c) : a = c := calc
  a = b := h
  _ = c := h'
theorem a9' (x : Nat) (h : x = 3 + 4) : x = 7 := by simp at h; exact h
/-! Remaining tactics, one use each. -/
theorem s_refine' (p q : Prop) (h : p → q) (hp : p) : q := by
  refine' h ?_
  exact hp
theorem s_intros (p q : Prop) : p → q → p := by
  intros hp hq
  exact hp
theorem s_revert (a b : Nat) (h : a = b) : b = a := by
  revert h
  intro h
  subst h
  rfl
theorem s_spec (f : Nat → Nat) (h : ∀ x, f x = x) : f 3 = 3 := by
  specialize h 3
  exact h
theorem s_rename (p q : Prop) : p → q → p := by
  intro _ _
  rename_i hp hq
  exact hp
theorem s_change (a : Nat) (h : a + 0 = 3) : a = 3 := by
  change a = 3 at h
  exact h
theorem s_inj (a b : Nat) (h : Nat.succ a = Nat.succ b) : a = b := by
  injection h
def two : Nat := 2
theorem s_unfold : two = 2 := by
  unfold two
  rfl
theorem s_delta : two = 2 := by
  delta two
  rfl
theorem s_gen (f : Nat → Nat) (a : Nat) (h : ∀ x : Nat, x = x) : f a = f a := by
  generalize f a = y
  exact h y
theorem s_goals (p q : Prop) (hp : p) (hq : q) : p ∧ q := by
  constructor
  all_goals try skip
  any_goals exact hp
  focus exact hq
theorem s_semi (p : Prop) (hp : p) : p ∧ p := by
  constructor <;> exact hp
theorem s_suff (p q : Prop) (hp : p) (h : p → q) : q := by
  suffices hp' : p from h hp'
  exact hp
theorem s_dsimp (a : Nat) (h : (fun x : Nat => x) a = 3) : a = 3 := by
  dsimp only at h
  exact h
theorem s_let : True := by
  let x := 3
  have h : x = 3 := rfl
  trivial
theorem s_exfalso (p : Prop) (h : False) : p := by
  exfalso
  exact h
theorem s_first (a b : Nat) (h : a = b) : b = a := by
  first
  | assumption
  | exact h.symm
theorem s_case (p q : Prop) (h : p ∨ q) : q ∨ p := by
  cases h
  case inl h => right; exact h
  case inr h => left; exact h
theorem s_repeat (a b : Nat) (h : a = b) (h' : b = 3) : a = 3 := by
  rw [h'] at h
  repeat rw [h]
theorem s_clear (a b : Nat) (h : a = b) (h' : a = 3) : a = 3 := by
  clear h
  rw [← h']
theorem s_ind (l : List Nat) (m : List Nat) : (l ++ m).length = m.length + l.length := by
  induction l generalizing m with
  | nil => rfl
  | cons a l ih =>
    show (l ++ m).length + 1 = _
    rw [ih m]
    rfl
