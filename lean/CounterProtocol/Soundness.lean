/-
CounterProtocol.Soundness : conditions on a program that make every run safe.

`Valid p` speaks about one step and mentions no state; `Valid.safe` lifts it to runs of any number of steps.
-/
prelude
import CounterProtocol.Model
set_option autoImplicit true
set_option linter.all false

namespace CounterProtocol

/-- Signals of counter `c` in one step, by the packets before `i`. -/
noncomputable def signalsBefore (p : Program) (c i : Nat) : Nat := sum i (fun j => count c (p.packet j).signals)

/-- The synchronisation makes `v` start after `u` has finished: through a worker's list, through a wait for *all*
    signals of a counter that `u` signals, or through a chain of these. -/
inductive Enforced (p : Program) : Nat → Nat → Prop where
  | list {u v : Nat} : u < v → v < p.size → (p.packet u).worker = (p.packet v).worker → Enforced p u v
  | counter {u v : Nat} (w : Wait) : u < p.size → w ∈ (p.packet v).waits → w.counter ≠ stepCounter →
      p.total w.counter ≤ w.threshold → 0 < count w.counter (p.packet u).signals → Enforced p u v
  | trans {u a v : Nat} : Enforced p u a → Enforced p a v → Enforced p u v

/-- A wait of packet `i` is met at the latest when all earlier packets have finished. -/
def Attainable (p : Program) (i : Nat) (w : Wait) : Prop :=
  (w.counter ≠ stepCounter → w.threshold ≤ signalsBefore p w.counter i) ∧
  (w.counter = stepCounter → w.threshold ≤ p.total stepCounter)

structure Valid (p : Program) : Prop where
  totals : ∀ c, p.total c = signalsBefore p c p.size
  attainable : ∀ i, i < p.size → ∀ w, w ∈ (p.packet i).waits → Attainable p i w
  /-- The first packet of every worker waits until the previous step is over. -/
  first : ∀ i, i < p.size →
    (∃ w, w ∈ (p.packet i).waits ∧ w.counter = stepCounter ∧ p.total stepCounter ≤ w.threshold) ∨
    ∃ j, j < i ∧ (p.packet j).worker = (p.packet i).worker
  /-- The last packet of every worker signals the step counter. -/
  last : ∀ i, i < p.size → 0 < count stepCounter (p.packet i).signals ∨
    ∃ j, i < j ∧ j < p.size ∧ (p.packet j).worker = (p.packet i).worker
  edges : ∀ x, x ∈ p.edges → Enforced p x.before x.after
  fans : ∀ x, x ∈ p.fans → ∀ i, i < x.length → ∀ v, v ∈ x.afters → Enforced p (x.first + i) v

/-! ## Values of counters -/
/-- Signals of `c` that have happened in step `e`. -/
noncomputable def inStep (p : Program) (done : Nat → Nat → Bool) (c e : Nat) : Nat :=
  sum p.size (fun i => cond (done e i) (count c (p.packet i).signals) 0)

theorem cond_le (b : Bool) (x : Nat) : cond b x 0 ≤ x := by
  cases b with
  | true => exact Nat.le_refl x
  | false => exact Nat.zero_le x

theorem inStep_le (p : Program) (done : Nat → Nat → Bool) (c e : Nat) :
    inStep p done c e ≤ signalsBefore p c p.size := Sum.le (fun _ _ => cond_le _ _)

theorem le_inStep {p : Program} {done : Nat → Nat → Bool} {e i : Nat} (hi : i ≤ p.size)
    (h : ∀ j, j < i → done e j = true) (c : Nat) : signalsBefore p c i ≤ inStep p done c e := by
  refine Sum.le_of_prefix hi (fun j hj => ?_)
  rw [h j hj]; exact Nat.le_refl _

/-- All signals of a step have happened only if every packet that signals has finished. -/
theorem done_of_full {p : Program} {done : Nat → Nat → Bool} {c e a : Nat}
    (full : signalsBefore p c p.size ≤ inStep p done c e) (ha : a < p.size)
    (hc : 0 < count c (p.packet a).signals) : done e a = true := by
  cases hd : done e a with
  | true => rfl
  | false =>
    refine absurd full (Nat.not_le_of_gt (Sum.lt (fun _ _ => cond_le _ _) ha ?_))
    show cond (done e a) _ 0 < _
    rw [hd]; exact hc

/-- Nothing of a later step has happened: the counter holds at most `e` whole steps and what step `e` has done. -/
theorem value_le {p : Program} {n e : Nat} {done : Nat → Nat → Bool}
    (later : ∀ d i, e < d → done d i = false) (c : Nat) :
    value p n done c ≤ e * signalsBefore p c p.size + inStep p done c e := by
  refine Sum.le_blocks (f := inStep p done c) (fun d _ => inStep_le p done c d) (Nat.le_refl _) (fun d hd => ?_) n
  have empty : ∀ m, sum m (fun i => cond (done d i) (count c (p.packet i).signals) 0) = 0 := by
    intro m
    induction m with
    | zero => rfl
    | succ m ih => rw [Sum.succ, ih, later d m hd]; rfl
  exact empty p.size

/-- All earlier steps are over, and so are the packets before `i` of step `e`. -/
theorem le_value {p : Program} {n e i : Nat} {done : Nat → Nat → Bool} (he : e < n) (hi : i ≤ p.size)
    (over : ∀ d j, d < e → j < p.size → done d j = true) (here : ∀ j, j < i → done e j = true) (c : Nat) :
    e * signalsBefore p c p.size + signalsBefore p c i ≤ value p n done c :=
  Sum.blocks_le (f := inStep p done c) (fun d hd => le_inStep (Nat.le_refl _) (fun j hj => over d j hd hj) c)
    (le_inStep hi here c) he

theorem value_mono {p : Program} {n : Nat} {d d' : Nat → Nat → Bool} (h : ∀ e i, d e i = true → d' e i = true)
    (c : Nat) : value p n d c ≤ value p n d' c := by
  refine Sum.le (fun e _ => Sum.le (fun i _ => ?_))
  cases hd : d e i with
  | true => rw [h e i hd]; exact Nat.le_refl _
  | false => exact Nat.zero_le _

theorem Met.mono {p : Program} {n e : Nat} {d d' : Nat → Nat → Bool} {w : Wait}
    (h : ∀ e i, d e i = true → d' e i = true) (met : Met p n d e w) : Met p n d' e w :=
  ⟨fun hc => Nat.le_trans (met.left hc) (value_mono h _),
   fun hc => Nat.le_trans (met.right hc) (Nat.add_le_add_right (value_mono h _) _)⟩

/-! ## Point updates -/
theorem set_mono (f : Nat → Nat → Bool) (e i : Nat) : ∀ e' i', f e' i' = true → set f e i e' i' = true :=
  fun _ _ h => (Bool.or_eq_true _ _).mpr (.inr h)

theorem set_cases {f : Nat → Nat → Bool} {e i e' i' : Nat} (h : set f e i e' i' = true) :
    (e' = e ∧ i' = i) ∨ f e' i' = true := by
  cases (Bool.or_eq_true _ _).mp h with
  | inr h => exact .inr h
  | inl h =>
    have both := (Bool.and_eq_true _ _).mp h
    exact .inl ⟨Nat.eq_of_beq_eq_true both.left, Nat.eq_of_beq_eq_true both.right⟩

theorem set_self (f : Nat → Nat → Bool) (e i : Nat) : set f e i e i = true := by
  show (Nat.beq e e && Nat.beq i i || f e i) = true
  rw [Nat.beq_self, Nat.beq_self]; rfl

/-! ## The invariant of all reachable states -/
structure Inv (p : Program) (n : Nat) (s : State) : Prop where
  ran : ∀ e i, s.done e i = true → s.started e i = true
  queue : ∀ e i, s.started e i = true → ∀ d j, Earlier p d j e i → s.done d j = true
  waits : ∀ e i, s.started e i = true → ∀ w, w ∈ (p.packet i).waits → Met p n s.done e w
  separated : ∀ e i, s.started (Nat.succ e) i = true → ∀ j, j < p.size → s.done e j = true

/-- While step `e` is unfinished, no later step has begun. -/
theorem Inv.not_started {p : Program} {n : Nat} {s : State} (inv : Inv p n s) {e j : Nat} (hj : j < p.size)
    (undone : s.done e j = false) : ∀ d i, e < d → s.started d i = false := by
  intro d
  induction d with
  | zero => intro i h; exact absurd h (Nat.not_lt_zero e)
  | succ d ih =>
    intro i h
    cases hs : s.started (Nat.succ d) i with
    | false => rfl
    | true =>
      have over := inv.separated d i hs j hj
      cases Nat.eq_or_lt_of_le (Nat.le_of_lt_succ h) with
      | inl e => subst e; exact absurd (over.symm.trans undone) (fun h => Bool.noConfusion h)
      | inr l => exact absurd ((inv.ran d j over).symm.trans (ih j l)) (fun h => Bool.noConfusion h)

theorem Inv.not_done {p : Program} {n : Nat} {s : State} (inv : Inv p n s) {e j : Nat} (hj : j < p.size)
    (undone : s.done e j = false) : ∀ d i, e < d → s.done d i = false := by
  intro d i h
  cases hd : s.done d i with
  | false => rfl
  | true => exact (inv.ran d i hd).symm.trans (inv.not_started hj undone d i h)

/-- A wait of step `e` for all signals of a counter: when it is met, those who signal it have finished step `e`. -/
theorem Inv.full {p : Program} (valid : Valid p) {n : Nat} {s : State} (inv : Inv p n s) {e a c t : Nat}
    (met : e * p.total c + t ≤ value p n s.done c) (full : p.total c ≤ t) (ha : a < p.size)
    (hc : 0 < count c (p.packet a).signals) : s.done e a = true := by
  cases hd : s.done e a with
  | true => rfl
  | false =>
    have upper := value_le (p := p) (n := n) (fun d i h => inv.not_done ha hd d i h) c
    rw [← valid.totals c] at upper
    have enough := Nat.le_of_add_le_add_left (Nat.le_trans (Nat.add_le_add_left full _) (Nat.le_trans met upper))
    rw [valid.totals c] at enough
    exact hd.symm.trans (done_of_full enough ha hc)

/-- Every packet is followed, in its worker's list, by one that signals the step counter (or is that one). -/
theorem Valid.last_signals {p : Program} (valid : Valid p) : ∀ k j, j < p.size → p.size ≤ j + k →
    ∃ l, (l = j ∨ j < l) ∧ l < p.size ∧ (p.packet l).worker = (p.packet j).worker ∧
      0 < count stepCounter (p.packet l).signals := by
  intro k
  induction k with
  | zero => intro j hj h; exact absurd hj (Nat.not_lt_of_le h)
  | succ k ih =>
    intro j hj h
    cases valid.last j hj with
    | inl here => exact ⟨j, .inl rfl, hj, rfl, here⟩
    | inr later =>
      refine later.elim (fun l hl => ?_)
      have closer : p.size ≤ l + k := by
        refine Nat.le_trans h ?_
        rw [Nat.add_succ, ← Nat.succ_add]
        exact Nat.add_le_add_right hl.left k
      refine (ih l hl.right.left closer).elim (fun m hm => ⟨m, .inr ?_, hm.right.left, ?_, hm.right.right.right⟩)
      · cases hm.left with
        | inl e => subst e; exact hl.left
        | inr g => exact Nat.lt_trans hl.left g
      · exact hm.right.right.left.trans hl.right.right

/-- A worker's first packet starts step `e + 1` only when step `e` is over. -/
theorem Inv.step_over {p : Program} (valid : Valid p) {n : Nat} {s : State} (inv : Inv p n s) {e i : Nat}
    (hi : i < p.size) (queue : ∀ d j, Earlier p d j (Nat.succ e) i → s.done d j = true)
    (waits : ∀ w, w ∈ (p.packet i).waits → Met p n s.done (Nat.succ e) w) : ∀ j, j < p.size → s.done e j = true := by
  cases valid.first i hi with
  | inr earlier =>
    refine earlier.elim (fun j hj => ?_)
    have hd := queue (Nat.succ e) j ⟨Nat.lt_trans hj.left hi, hj.right, .inr ⟨rfl, hj.left⟩⟩
    exact inv.separated e j (inv.ran _ _ hd)
  | inl wait =>
    refine wait.elim (fun w hw j hj => ?_)
    have met := (waits w hw.left).right hw.right.left
    rw [Nat.succ_mul, Nat.add_assoc, Nat.add_comm (p.total stepCounter), ← Nat.add_assoc] at met
    have met := Nat.le_of_add_le_add_right met
    refine (valid.last_signals p.size j hj (Nat.le_add_left _ _)).elim (fun l hl => ?_)
    have hd := inv.full valid met hw.right.right hl.right.left hl.right.right.right
    cases hl.left with
    | inl same => rw [← same]; exact hd
    | inr before => exact inv.queue e l (inv.ran e l hd) e j ⟨hj, hl.right.right.left.symm, .inr ⟨rfl, before⟩⟩

theorem Inv.start {p : Program} (valid : Valid p) {n : Nat} {s : State} (inv : Inv p n s) {e i : Nat}
    (hi : i < p.size) (queue : ∀ d j, Earlier p d j e i → s.done d j = true)
    (waits : ∀ w, w ∈ (p.packet i).waits → Met p n s.done e w) : Inv p n ⟨set s.started e i, s.done⟩ where
  ran := fun e' i' h => set_mono _ _ _ _ _ (inv.ran e' i' h)
  queue := fun e' i' h => by
    cases set_cases h with
    | inr h => exact inv.queue e' i' h
    | inl here => rw [here.left, here.right]; exact queue
  waits := fun e' i' h => by
    cases set_cases h with
    | inr h => exact inv.waits e' i' h
    | inl here => rw [here.left, here.right]; exact waits
  separated := fun e' i' h => by
    cases set_cases h with
    | inr h => exact inv.separated e' i' h
    | inl here =>
      have e1 := here.left
      subst e1
      exact inv.step_over valid hi queue waits

theorem Inv.finish {p : Program} {n : Nat} {s : State} (inv : Inv p n s) {e i : Nat}
    (running : s.started e i = true) : Inv p n ⟨s.started, set s.done e i⟩ where
  ran := fun e' i' h => by
    cases set_cases h with
    | inr h => exact inv.ran e' i' h
    | inl here => rw [here.left, here.right]; exact running
  queue := fun e' i' h d j hj => set_mono _ _ _ _ _ (inv.queue e' i' h d j hj)
  waits := fun e' i' h w hw => (inv.waits e' i' h w hw).mono (set_mono _ _ _)
  separated := fun e' i' h j hj => set_mono _ _ _ _ _ (inv.separated e' i' h j hj)

theorem inv_of_reachable {p : Program} (valid : Valid p) {n : Nat} {s : State} (h : Reachable p n s) : Inv p n s := by
  induction h with
  | init =>
    exact ⟨fun _ _ h => Bool.noConfusion h, fun _ _ h => Bool.noConfusion h, fun _ _ h => Bool.noConfusion h,
      fun _ _ h => Bool.noConfusion h⟩
  | step _ step ih =>
    cases step with
    | start e i he hi fresh queue waits => exact ih.start valid hi queue waits
    | finish e i he hi running unfinished => exact ih.finish running

/-! ## The three claims -/
theorem separated {p : Program} (valid : Valid p) : Separated p :=
  fun _ _ h => (inv_of_reachable valid h).separated

theorem Enforced.done {p : Program} (valid : Valid p) {n : Nat} {s : State} (inv : Inv p n s) {u v : Nat}
    (h : Enforced p u v) : ∀ e, s.started e v = true → s.done e u = true := by
  induction h with
  | list huv hv same =>
    intro e hs
    exact inv.queue e _ hs e _ ⟨Nat.lt_trans huv hv, same, .inr ⟨rfl, huv⟩⟩
  | counter w hu hw hc full signals =>
    intro e hs
    exact inv.full valid ((inv.waits e _ hs w hw).left hc) full hu signals
  | trans _ _ first second => exact fun e hs => first e (inv.ran e _ (second e hs))

theorem Before.enforced {p : Program} (valid : Valid p) {u v : Nat} (h : Before p u v) : Enforced p u v := by
  induction h with
  | edge x hx => exact valid.edges x hx
  | fan x hx hi hv => exact valid.fans x hx _ hi _ hv
  | list huv hv same => exact .list huv hv same
  | trans _ _ first second => exact .trans first second

theorem ordered {p : Program} (valid : Valid p) : Ordered p :=
  fun _ _ hr _ _ h e hs => (h.enforced valid).done valid (inv_of_reachable valid hr) e hs

/-- The first `n` entries hold, or there is a least one that does not. -/
theorem least_false (f : Nat → Bool) (n : Nat) :
    (∀ i, i < n → f i = true) ∨ ∃ i, i < n ∧ f i = false ∧ ∀ j, j < i → f j = true := by
  induction n with
  | zero => exact .inl (fun i hi => absurd hi (Nat.not_lt_zero i))
  | succ n ih =>
    cases ih with
    | inr h => exact h.elim (fun i hi => .inr ⟨i, Nat.lt_trans hi.left (Nat.lt_succ_self n), hi.right⟩)
    | inl h =>
      cases hf : f n with
      | false => exact .inr ⟨n, Nat.lt_succ_self n, hf, h⟩
      | true =>
        refine .inl (fun i hi => ?_)
        cases Nat.eq_or_lt_of_le (Nat.le_of_lt_succ hi) with
        | inl e => rw [e]; exact hf
        | inr l => exact h i l

/-- Everything is done, or there is a least unfinished packet in the least unfinished step. -/
theorem least_undone (done : Nat → Nat → Bool) (size n : Nat) :
    (∀ e i, e < n → i < size → done e i = true) ∨
    ∃ e, ∃ i, e < n ∧ i < size ∧ done e i = false ∧ (∀ d j, d < e → j < size → done d j = true) ∧
      ∀ j, j < i → done e j = true := by
  induction n with
  | zero => exact .inl (fun e _ he _ => absurd he (Nat.not_lt_zero e))
  | succ n ih =>
    cases ih with
    | inr h =>
      exact h.elim (fun e h => h.elim (fun i hi =>
        .inr ⟨e, i, Nat.lt_trans hi.left (Nat.lt_succ_self n), hi.right⟩))
    | inl over =>
      cases least_false (done n) size with
      | inr h =>
        refine h.elim (fun i hi => .inr ⟨n, i, Nat.lt_succ_self n, hi.left, hi.right.left, ?_, hi.right.right⟩)
        exact fun d j hd hj => over d j hd hj
      | inl last =>
        refine .inl (fun e i he hi => ?_)
        cases Nat.eq_or_lt_of_le (Nat.le_of_lt_succ he) with
        | inl same => rw [same]; exact last i hi
        | inr l => exact over e i l hi

/-- Progress: the least unfinished packet can always finish, or start. -/
theorem deadlockFree {p : Program} (valid : Valid p) : DeadlockFree p := by
  intro n s _
  cases least_undone s.done p.size n with
  | inl all => exact .inl all
  | inr least =>
    refine least.elim (fun e h => h.elim (fun i hi => .inr ?_))
    have he := hi.left
    have hlt := hi.right.left
    have over := hi.right.right.right.left
    have here := hi.right.right.right.right
    cases hs : s.started e i with
    | true => exact ⟨_, Step.finish e i he hlt hs hi.right.right.left⟩
    | false =>
      refine ⟨_, Step.start e i he hlt hs ?_ ?_⟩
      · intro d j earlier
        cases earlier.right.right with
        | inl l => exact over d j l earlier.left
        | inr same => rw [same.left]; exact here j same.right
      · intro w hw
        have reach := valid.attainable i hlt w hw
        have lower := fun c => le_value he (Nat.le_of_lt hlt) over here c
        refine ⟨fun hc => ?_, fun hc => ?_⟩
        · rw [valid.totals w.counter]
          exact Nat.le_trans (Nat.add_le_add_left (reach.left hc) _) (lower w.counter)
        · refine Nat.add_le_add ?_ (reach.right hc)
          rw [valid.totals stepCounter]
          exact Nat.le_trans (Nat.le_add_right _ _) (lower stepCounter)

theorem Valid.safe {p : Program} (valid : Valid p) : Safe p := ⟨deadlockFree valid, separated valid, ordered valid⟩

end CounterProtocol
