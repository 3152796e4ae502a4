/-
CounterProtocol.Checked : what the checker says is true: `check p = true → Safe p.program`.
-/
prelude
import CounterProtocol.Payload
set_option autoImplicit true
set_option linter.all false

namespace CounterProtocol
open Digits

theorem allBelow_elim {n : Nat} {f : Nat → Bool} (h : allBelow n f = true) : ∀ i, i < n → f i = true := by
  induction n with
  | zero => intro i hi; exact absurd hi (Nat.not_lt_zero i)
  | succ n ih =>
    intro i hi
    have both := (Bool.and_eq_true _ _).mp h
    cases Nat.eq_or_lt_of_le (Nat.le_of_lt_succ hi) with
    | inl e => rw [e]; exact both.left
    | inr l => exact ih both.right i l

theorem of_cond {b c : Bool} (h : cond b c true = true) : b = true → c = true := by
  intro e; rw [e] at h; exact h

/-- The parts of `checkPacket`, by name. -/
structure PacketChecks (p : Payload) (i : Nat) : Prop where
  waits : (p.program.packet i).waits.all (checkWait p.program i) = true
  signalsFit : fits (signalsAt p.program i) (histogram (signalsAt p.program) i) = true
  workerFits : fits (workerAt p.program i) (histogram (workerAt p.program) i) = true
  first : checkFirst p.program i = true
  last : checkLast p.program p.lengths i = true

theorem packetChecks {p : Payload} {i : Nat} (h : checkPacket p i = true) : PacketChecks p i :=
  have a := (Bool.and_eq_true _ _).mp h
  have b := (Bool.and_eq_true _ _).mp a.right
  have c := (Bool.and_eq_true _ _).mp b.right
  have d := (Bool.and_eq_true _ _).mp c.right
  have e := (Bool.and_eq_true _ _).mp d.right
  ⟨b.left, c.left, d.left, e.left, e.right⟩

/-- Counting a one-element list. -/
theorem same_of_count {k a : Nat} (h : 0 < count k (.cons a .nil)) : a = k := by
  cases hb : Nat.beq a k with
  | true => exact Nat.eq_of_beq_eq_true hb
  | false =>
    have e : count k (.cons a .nil) = cond (Nat.beq a k) 1 0 := rfl
    rw [e, hb] at h
    exact absurd h (Nat.lt_irrefl 0)

section
variable {p : Payload} (packets : ∀ i, i < p.size → PacketChecks p i)
include packets

theorem signals_counted (c : Nat) {i : Nat} (hi : i ≤ p.size) :
    digit c (histogram (signalsAt p.program) i) = signalsBefore p.program c i :=
  digit_histogram c (fun j hj => (packets j (Nat.lt_of_lt_of_le hj hi)).signalsFit)

theorem workers_counted (k : Nat) {i : Nat} (hi : i ≤ p.size) :
    digit k (histogram (workerAt p.program) i) = sum i (fun j => count k (workerAt p.program j)) :=
  digit_histogram k (fun j hj => (packets j (Nat.lt_of_lt_of_le hj hi)).workerFits)

theorem attainable_of_check {i : Nat} (hi : i < p.size) {w : Wait} (h : checkWait p.program i w = true) :
    Attainable p.program i w := by
  cases hs : isStep w.counter with
  | true =>
    have e : w.counter = stepCounter := Nat.eq_of_beq_eq_true hs
    have h' : cond (isStep w.counter) _ _ = true := h
    rw [hs] at h'
    exact ⟨fun ne => absurd e ne, fun _ => Nat.le_of_ble_eq_true h'⟩
  | false =>
    have ne : w.counter ≠ stepCounter := Nat.ne_of_beq_eq_false hs
    have h' : cond (isStep w.counter) _ _ = true := h
    rw [hs] at h'
    refine ⟨fun _ => ?_, fun e => absurd e ne⟩
    rw [← signals_counted packets w.counter (Nat.le_of_lt hi)]
    exact Nat.le_of_ble_eq_true h'

theorem first_of_check {i : Nat} (hi : i < p.size) (h : checkFirst p.program i = true) :
    (∃ w, w ∈ (p.program.packet i).waits ∧ w.counter = stepCounter ∧ p.program.total stepCounter ≤ w.threshold) ∨
    ∃ j, j < i ∧ (p.program.packet j).worker = (p.program.packet i).worker := by
  cases hb : Nat.beq (digit (p.program.packet i).worker (histogram (workerAt p.program) i)) (nat_lit 0) with
  | true =>
    refine .inl ((List.any_eq_true _ _ (of_cond h hb)).elim (fun w hw => ?_))
    have both := (Bool.and_eq_true _ _).mp hw.right
    exact ⟨w, hw.left, Nat.eq_of_beq_eq_true both.left, Nat.le_of_ble_eq_true both.right⟩
  | false =>
    have ne := Nat.ne_of_beq_eq_false hb
    rw [workers_counted packets _ (Nat.le_of_lt hi)] at ne
    have pos : 0 < sum i (fun j => count (p.program.packet i).worker (workerAt p.program j)) := by
      cases Nat.eq_or_lt_of_le (Nat.zero_le
          (sum i (fun j => count (p.program.packet i).worker (workerAt p.program j)))) with
      | inl e => exact absurd e.symm ne
      | inr l => exact l
    exact .inr ((Sum.exists_of_pos pos).elim (fun j hj => ⟨j, hj.left, same_of_count hj.right⟩))

theorem last_of_check (lengths : checkLengths p = true) {i : Nat} (hi : i < p.size)
    (h : checkLast p.program p.lengths i = true) :
    0 < count stepCounter (p.program.packet i).signals ∨
    ∃ j, i < j ∧ j < p.size ∧ (p.program.packet j).worker = (p.program.packet i).worker := by
  cases hb : Nat.beq (digit (p.program.packet i).worker (histogram (workerAt p.program) (Nat.succ i)))
      (digit (p.program.packet i).worker p.lengths) with
  | true => exact .inl ((Nat.blt_eq_true_eq _ _).mp (of_cond h hb))
  | false =>
    have ne := Nat.ne_of_beq_eq_false hb
    have stated : histogram (workerAt p.program) p.size = p.lengths := Nat.eq_of_beq_eq_true lengths
    rw [← stated, workers_counted packets _ hi, workers_counted packets _ (Nat.le_refl _)] at ne
    exact .inr ((Sum.exists_between hi ne).elim
      (fun j hj => ⟨j, hj.left, hj.right.left, same_of_count hj.right.right⟩))

end

theorem enforced_of_hop {p : Program} {a b : Nat} (h : checkHop p a b = true) : Enforced p a b := by
  cases (Bool.or_eq_true _ _).mp h with
  | inl list =>
    have both := (Bool.and_eq_true _ _).mp list
    have bounds := (Bool.and_eq_true _ _).mp both.left
    exact .list ((Nat.blt_eq_true_eq _ _).mp bounds.left) ((Nat.blt_eq_true_eq _ _).mp bounds.right)
      (Nat.eq_of_beq_eq_true both.right)
  | inr counter =>
    have both := (Bool.and_eq_true _ _).mp counter
    refine (List.any_eq_true _ _ both.right).elim (fun w hw => ?_)
    have wait := (Bool.and_eq_true _ _).mp hw.right
    have rest := (Bool.and_eq_true _ _).mp wait.right
    refine .counter w ((Nat.blt_eq_true_eq _ _).mp both.left) hw.left (fun e => ?_)
      (Nat.le_of_ble_eq_true rest.left) ((Nat.blt_eq_true_eq _ _).mp rest.right)
    have no : isStep w.counter = false := Bool.not_eq_true' _ ▸ wait.left
    have yes : isStep w.counter = true := by rw [e]; rfl
    exact Bool.noConfusion (yes.symm.trans no)

theorem fan_of_check {p : Program} {x : FanWitness} (h : checkFan p x = true) :
    ∀ i, i < x.length → ∀ v, v ∈ x.afters → Enforced p (x.first + i) v := by
  intro i hi v hv
  have a := (Bool.and_eq_true _ _).mp h
  have b := (Bool.and_eq_true _ _).mp a.right
  have maker := (Bool.and_eq_true _ _).mp (allBelow_elim b.left i hi)
  refine (List.any_eq_true _ _ ((List.all_eq_true _ _).mp b.right v hv)).elim (fun w hw => ?_)
  have user := (Bool.and_eq_true _ _).mp hw.right
  have e : w.counter = x.counter := Nat.eq_of_beq_eq_true user.left
  refine .counter w ((Nat.blt_eq_true_eq _ _).mp maker.left) hw.left (fun step => ?_) ?_ ?_
  · have no : isStep x.counter = false := Bool.not_eq_true' _ ▸ a.left
    have yes : isStep x.counter = true := by rw [← e, step]; rfl
    exact Bool.noConfusion (yes.symm.trans no)
  · rw [e]; exact Nat.le_of_ble_eq_true user.right
  · rw [e]; exact (Nat.blt_eq_true_eq _ _).mp maker.right

theorem enforced_of_chain {p : Program} {b : Nat} {via : List Nat} :
    ∀ a, checkChain p b via a = true → Enforced p a b := by
  induction via with
  | nil => exact fun a h => enforced_of_hop h
  | cons x via ih =>
    intro a h
    have both := (Bool.and_eq_true _ _).mp h
    exact .trans (enforced_of_hop both.left) (ih x both.right)

theorem mem_mapK {f : α → β} {l : List α} {b : β} (h : b ∈ l.mapK f) : ∃ a, a ∈ l ∧ b = f a := by
  induction l with
  | nil => rw [List.mapK_nil] at h; exact absurd h (List.not_mem_nil b)
  | cons x l ih =>
    rw [List.mapK_cons] at h
    cases (List.mem_cons _ _ _).mp h with
    | inl e => exact ⟨x, .head _, e⟩
    | inr h => exact (ih h).elim (fun a ha => ⟨a, .tail _ ha.left, ha.right⟩)

theorem valid_of_check {p : Payload} (h : check p = true) : Valid p.program := by
  rw [check_eq] at h
  have a := (Bool.and_eq_true _ _).mp h
  have b := (Bool.and_eq_true _ _).mp a.right
  have c := (Bool.and_eq_true _ _).mp b.right
  have d := (Bool.and_eq_true _ _).mp c.right
  have packets : ∀ i, i < p.size → PacketChecks p i := fun i hi => packetChecks (allBelow_elim a.left i hi)
  have stated : histogram (signalsAt p.program) p.size = p.totals := Nat.eq_of_beq_eq_true b.left
  refine ⟨fun k => ?_, fun i hi w hw => ?_, fun i hi => ?_, fun i hi => ?_, fun x hx => ?_, fun x hx => ?_⟩
  · have e : p.program.total k = digit k p.totals := rfl
    rw [e, ← stated]
    exact signals_counted packets k (Nat.le_refl _)
  · exact attainable_of_check packets hi ((List.all_eq_true _ _).mp (packets i hi).waits w hw)
  · exact first_of_check packets hi (packets i hi).first
  · exact last_of_check packets c.left hi (packets i hi).last
  · refine (mem_mapK hx).elim (fun w hw => ?_)
    rw [hw.right]
    exact enforced_of_chain _ ((List.all_eq_true _ _).mp d.left w hw.left)
  · refine (mem_mapK hx).elim (fun f hf => ?_)
    rw [hf.right]
    exact fan_of_check ((List.all_eq_true _ _).mp d.right f hf.left)

/-- What a certificate of checkpoint D means. -/
theorem sound {p : Payload} (h : check p = true) : Safe p.program := (valid_of_check h).safe

end CounterProtocol
