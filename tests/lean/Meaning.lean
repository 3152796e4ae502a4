/-
The claims of checkpoint D are not trivially true: each of them fails for a program that lacks what the checker asks
for. And they are not vacuous: a safe program with an edge reaches the state that the edge speaks about.
-/
prelude
import CounterProtocol.Checked
import CounterProtocol.Completion
set_option linter.all false
namespace CounterProtocol

/-! ## A packet that waits for its own signal is stuck -/
def selfWait : Program := ⟨1, fun _ => ⟨0, [⟨1, 1⟩], [1]⟩, fun _ => 1, [], []⟩

theorem selfWait_stuck : ¬ DeadlockFree selfWait := by
  intro h
  cases h 1 State.init Reachable.init with
  | inl all => exact Bool.noConfusion (all 0 0 (Nat.zero_lt_succ 0) (Nat.zero_lt_succ 0))
  | inr step =>
    refine step.elim (fun s hs => ?_)
    cases hs with
    | finish e i he hi running unfinished => exact Bool.noConfusion running
    | start e i he hi fresh queue waits =>
      have met := (waits ⟨1, 1⟩ (.head _)).left (fun h => Nat.noConfusion h)
      have zero : value selfWait 1 State.init.done 1 = 0 := rfl
      have e0 : e = 0 := Nat.le_antisymm (Nat.le_of_lt_succ he) (Nat.zero_le e)
      subst e0
      rw [zero] at met
      exact Nat.not_succ_le_zero 0 met

/-! ## Without waits, an edge between two workers can be violated -/
def free (edges : List Edge) : Program := ⟨2, fun i => ⟨i, [], []⟩, fun _ => 0, edges, []⟩

theorem free_queue {edges : List Edge} {d j : Nat} (h : Earlier (free edges) d j 0 1) : False := by
  have e : j = 1 := h.right.left
  cases h.right.right with
  | inl l => exact Nat.not_lt_zero d l
  | inr same => rw [e] at same; exact Nat.lt_irrefl 1 same.right

theorem free_start (edges : List Edge) : Reachable (free edges) 2 ⟨set State.init.started 0 1, State.init.done⟩ :=
  .step .init (.start 0 1 (Nat.zero_lt_succ 1) (Nat.lt_succ_self 1) rfl (fun _ _ h => (free_queue h).elim)
    (fun w hw => absurd hw (List.not_mem_nil w)))

theorem free_unordered : ¬ Ordered (free [⟨0, 1⟩]) := fun h =>
  Bool.noConfusion (h 2 _ (free_start _) 0 1 (.edge ⟨0, 1⟩ (.head _)) 0 rfl)

/-! ## Without the step counter, a worker runs ahead into the next step -/
theorem free_overlaps : ¬ Separated (free []) := by
  intro h
  have second := Reachable.step (free_start []) (.finish 0 1 (Nat.zero_lt_succ 1) (Nat.lt_succ_self 1) rfl rfl)
  have third := Reachable.step second (.start 1 1 (Nat.lt_succ_self 1) (Nat.lt_succ_self 1) rfl (fun d j earlier => ?_)
    (fun w hw => absurd hw (List.not_mem_nil w)))
  · exact Bool.noConfusion (h 2 _ third 0 1 rfl 0 (Nat.zero_lt_succ 1))
  · have e : j = 1 := earlier.right.left
    cases earlier.right.right with
    | inr same => rw [e] at same; exact absurd same.right (Nat.lt_irrefl 1)
    | inl l =>
      have d0 : d = 0 := Nat.le_antisymm (Nat.le_of_lt_succ l) (Nat.zero_le d)
      rw [d0, e]; rfl

/-! ## A safe program: worker 0 makes, worker 1 uses -/
/-- Packet 0: waits (0, 2), signals 0 and 1. Packet 1: waits (0, 2) and (1, 1), signals 0. -/
noncomputable def pair : Payload where
  size := 2
  records := Nat.add
    (nat_lit 0x0001_0000_0000_ffff_0000_ffff_0000_ffff_0002_0000_0000_0000_0000_0000_0000_0000)
    (Nat.mul (Nat.pow 2 256)
      (nat_lit 0xffff_0000_0000_ffff_0000_ffff_0001_0001_0002_0000_0000_0000_0000_0001_0000_0001))
  totals := nat_lit 0x000001000002
  lengths := nat_lit 0x000001000001
  witnesses := [⟨0, 1, []⟩]
  fans := [⟨1, 0, 1, [1]⟩]

theorem pair_checked : check pair = true := by decide +kernel
theorem pair_safe : Safe pair.program := sound pair_checked

/-- The edge is not vacuous: its end does start in some run, of any number of steps. -/
theorem pair_edge_used (n : Nat) : ∃ s, Reachable pair.program n s ∧
    ∀ e, e < n → s.started e 1 = true ∧ s.done e 0 = true := by
  refine (pair_safe.left.completes (Reachable.init (n := n))).elim (fun s hs => ⟨s, hs.left, fun e he => ?_⟩)
  have last := hs.right e 1 he (Nat.lt_succ_self 1)
  exact ⟨(inv_of_reachable (valid_of_check pair_checked) hs.left).ran e 1 last,
    hs.right e 0 he (Nat.zero_lt_succ 1)⟩
end CounterProtocol
