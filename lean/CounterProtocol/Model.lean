/-
CounterProtocol.Model : what a packet program does, and what it must never do.

This is the specification. A program is the packets of one step, numbered by `seq`. Every worker runs its packets in
increasing `seq`, in step 0, then in step 1, and so on. A packet starts when its waits are met and signals its counters
when it finishes; start and finish are separate events, so packets of different workers overlap freely. Counters are
never reset. A wait `(c, threshold)` in step `e` is met when

    counter c ≥ e * total c + threshold                              (c ≠ 0)
    counter 0 ≥ (e - 1) * total 0 + threshold                        (the step counter refers to the previous step)

where `total c` is the number of signals of `c` in one step, as stored in the packet file. Not modelled: that a
counter is a 32-bit word (it wraps after 2^32 signals), and memory ordering (a signal is a release, a wait an acquire).
-/
prelude
import Base.Sum
set_option autoImplicit true
set_option linter.all false

namespace CounterProtocol

/-! ## Programs -/
structure Wait where
  counter : Nat
  threshold : Nat

structure Packet where
  worker : Nat
  waits : List Wait
  /-- Counters that grow by one when the packet finishes. -/
  signals : List Nat

/-- Packets `before` and `after` touch the same memory and at least one writes it: `before` must have finished. -/
structure Edge where
  before : Nat
  after : Nat

/-- Many edges in one: each of `length` packets from `first` on must have finished before each of `afters` starts. -/
structure Fan where
  first : Nat
  length : Nat
  afters : List Nat

structure Program where
  size : Nat
  packet : Nat → Packet
  total : Nat → Nat
  edges : List Edge
  fans : List Fan

/-- The counter that separates steps. -/
@[reducible] def stepCounter : Nat := nat_lit 0

/-! ## Runs of `n` steps.  `started e i` : packet `i` of step `e` has started. -/
structure State where
  started : Nat → Nat → Bool
  done : Nat → Nat → Bool

def State.init : State := ⟨fun _ _ => false, fun _ _ => false⟩

def set (f : Nat → Nat → Bool) (e i : Nat) : Nat → Nat → Bool :=
  fun e' i' => (Nat.beq e' e && Nat.beq i' i) || f e' i'

/-- The value of counter `c`: how many of its signals have happened, over all steps. -/
noncomputable def value (p : Program) (n : Nat) (done : Nat → Nat → Bool) (c : Nat) : Nat :=
  sum n (fun e => sum p.size (fun i => cond (done e i) (count c (p.packet i).signals) 0))

/-- A wait of step `e` is met. -/
def Met (p : Program) (n : Nat) (done : Nat → Nat → Bool) (e : Nat) (w : Wait) : Prop :=
  (w.counter ≠ stepCounter → e * p.total w.counter + w.threshold ≤ value p n done w.counter) ∧
  (w.counter = stepCounter →
    e * p.total stepCounter + w.threshold ≤ value p n done stepCounter + p.total stepCounter)

/-- Packet `j` of step `d` comes before packet `i` of step `e` in the list of the worker that runs both. -/
def Earlier (p : Program) (d j e i : Nat) : Prop :=
  j < p.size ∧ (p.packet j).worker = (p.packet i).worker ∧ (d < e ∨ (d = e ∧ j < i))

inductive Step (p : Program) (n : Nat) (s : State) : State → Prop where
  | start (e i : Nat) (he : e < n) (hi : i < p.size) (fresh : s.started e i = false)
      (queue : ∀ d j, Earlier p d j e i → s.done d j = true)
      (waits : ∀ w, w ∈ (p.packet i).waits → Met p n s.done e w) : Step p n s ⟨set s.started e i, s.done⟩
  | finish (e i : Nat) (he : e < n) (hi : i < p.size) (running : s.started e i = true)
      (unfinished : s.done e i = false) : Step p n s ⟨s.started, set s.done e i⟩

inductive Reachable (p : Program) (n : Nat) : State → Prop where
  | init : Reachable p n State.init
  | step {s s' : State} : Reachable p n s → Step p n s s' → Reachable p n s'

/-! ## What is claimed, for runs of any number of steps -/

/-- No reachable state is stuck before every packet of every step has finished. -/
def DeadlockFree (p : Program) : Prop :=
  ∀ n s, Reachable p n s → (∀ e i, e < n → i < p.size → s.done e i = true) ∨ ∃ s', Step p n s s'

/-- Steps never overlap: when a packet of step `e + 1` has started, all of step `e` has finished. -/
def Separated (p : Program) : Prop :=
  ∀ n s, Reachable p n s → ∀ e i, s.started (Nat.succ e) i = true → ∀ j, j < p.size → s.done e j = true

/-- The order that edges, fans and the workers' lists require, with all its chains. -/
inductive Before (p : Program) : Nat → Nat → Prop where
  | edge (x : Edge) : x ∈ p.edges → Before p x.before x.after
  | fan (x : Fan) {i v : Nat} : x ∈ p.fans → i < x.length → v ∈ x.afters → Before p (x.first + i) v
  | list {u v : Nat} : u < v → v < p.size → (p.packet u).worker = (p.packet v).worker → Before p u v
  | trans {u a v : Nat} : Before p u a → Before p a v → Before p u v

/-- In every step, a packet starts only after everything that must come before it has finished. -/
def Ordered (p : Program) : Prop :=
  ∀ n s, Reachable p n s → ∀ u v, Before p u v → ∀ e, s.started e v = true → s.done e u = true

def Safe (p : Program) : Prop := DeadlockFree p ∧ Separated p ∧ Ordered p

end CounterProtocol
