/-
CounterProtocol.Completion : runs end, and a deadlock-free program can always be run to its end.

So the claims about reachable states are not vacuous: every packet of every step does start in some run, and every run
is at most 2 * n * size events long.
-/
prelude
import CounterProtocol.Soundness
set_option autoImplicit true
set_option linter.all false

namespace CounterProtocol

/-- Events still to come: starts and finishes. -/
noncomputable def remaining (p : Program) (n : Nat) (s : State) : Nat :=
  sum n (fun e => sum p.size (fun i => cond (s.started e i) 0 1 + cond (s.done e i) 0 1))

theorem cond_anti {a b : Bool} (h : a = true → b = true) : cond b 0 1 ≤ cond a 0 1 := by
  cases ha : a with
  | true => rw [h ha]; exact Nat.le_refl 0
  | false =>
    cases b with
    | true => exact Nat.zero_le 1
    | false => exact Nat.le_refl 1

/-- Every event brings the end closer, whatever the program. -/
theorem Step.decreases {p : Program} {n : Nat} {s s' : State} (h : Step p n s s') :
    remaining p n s' < remaining p n s := by
  cases h with
  | start e i he hi fresh queue waits =>
    have le : ∀ d j, cond (set s.started e i d j) 0 1 + cond (s.done d j) 0 1
        ≤ cond (s.started d j) 0 1 + cond (s.done d j) 0 1 :=
      fun d j => Nat.add_le_add_right (cond_anti (set_mono s.started e i d j)) _
    refine Sum.lt (fun d _ => Sum.le (fun j _ => le d j)) he (Sum.lt (fun j _ => le e j) hi ?_)
    show cond (set s.started e i e i) 0 1 + cond (s.done e i) 0 1 < cond (s.started e i) 0 1 + cond (s.done e i) 0 1
    rw [set_self, fresh]
    exact Nat.add_lt_add_right (Nat.zero_lt_succ 0) _
  | finish e i he hi running unfinished =>
    have le : ∀ d j, cond (s.started d j) 0 1 + cond (set s.done e i d j) 0 1
        ≤ cond (s.started d j) 0 1 + cond (s.done d j) 0 1 :=
      fun d j => Nat.add_le_add_left (cond_anti (set_mono s.done e i d j)) _
    refine Sum.lt (fun d _ => Sum.le (fun j _ => le d j)) he (Sum.lt (fun j _ => le e j) hi ?_)
    show cond (s.started e i) 0 1 + cond (set s.done e i e i) 0 1 < cond (s.started e i) 0 1 + cond (s.done e i) 0 1
    rw [set_self, unfinished]
    exact Nat.add_lt_add_left (Nat.zero_lt_succ 0) _

theorem completes_within {p : Program} (free : DeadlockFree p) {n : Nat} : ∀ k s, Reachable p n s →
    remaining p n s ≤ k → ∃ s', Reachable p n s' ∧ ∀ e i, e < n → i < p.size → s'.done e i = true := by
  intro k
  induction k with
  | zero =>
    intro s hr hk
    cases free n s hr with
    | inl all => exact ⟨s, hr, all⟩
    | inr next =>
      exact next.elim (fun s' step => absurd (Nat.lt_of_lt_of_le step.decreases hk) (Nat.not_lt_zero _))
  | succ k ih =>
    intro s hr hk
    cases free n s hr with
    | inl all => exact ⟨s, hr, all⟩
    | inr next =>
      exact next.elim (fun s' step =>
        ih s' (.step hr step) (Nat.le_of_lt_succ (Nat.lt_of_lt_of_le step.decreases hk)))

/-- From every reachable state, the run can be completed. -/
theorem DeadlockFree.completes {p : Program} (free : DeadlockFree p) {n : Nat} {s : State} (h : Reachable p n s) :
    ∃ s', Reachable p n s' ∧ ∀ e i, e < n → i < p.size → s'.done e i = true :=
  completes_within free _ s h (Nat.le_refl _)

end CounterProtocol
