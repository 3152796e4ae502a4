/-
CounterProtocol.Payload : the certificate's payload, made of the bytes of the packet file, and the checker.

`records` holds bytes 4..35 of every packet, in the order of `seq`, 32 bytes each, little-endian:

    bit   0 worker u16    32 seq u32    96 waits   4 x (counter u16, threshold u16)
         16 domain u16    64 node u32  224 signals 2 x counter u16                    counter 0xFFFF = slot not used

`totals` and `lengths` are arrays of `Base.Digits`: signals a step of each counter, packets of each worker's list.
`witnesses` lists the edges, each with the packets on a chain of enforced orders from one end to the other. `fans`
lists edges in bulk, each with the counter that all packets before signal and all packets after wait for in full.

`check` is evaluated by the kernel. Literals are raw (`nat_lit`), so that it need not unfold `OfNat` instances; the
functions are direct recursor applications, which it reduces fastest.
-/
prelude
import Base.Digits
import CounterProtocol.Soundness
set_option autoImplicit true
set_option linter.all false

namespace CounterProtocol
open Digits

/-! ## Decoding -/
structure Witness where
  before : Nat
  after : Nat
  /-- Packets between the two, in order. -/
  via : List Nat

structure FanWitness where
  counter : Nat
  first : Nat
  length : Nat
  afters : List Nat

structure Payload where
  size : Nat
  records : Nat
  totals : Nat
  lengths : Nat
  witnesses : List Witness
  fans : List FanWitness

noncomputable def Payload.record (p : Payload) (i : Nat) : Nat :=
  Nat.mod (Nat.shiftRight p.records (Nat.mul (nat_lit 256) i)) (Nat.pow (nat_lit 2) (nat_lit 256))

noncomputable def u16 (r bit : Nat) : Nat := Nat.mod (Nat.shiftRight r bit) (nat_lit 65536)
noncomputable def u32 (r bit : Nat) : Nat := Nat.mod (Nat.shiftRight r bit) (nat_lit 4294967296)

/-- The first slot of a stream is not used. -/
noncomputable def isUnused (s : Nat) : Bool := Nat.beq (u16 s (nat_lit 0)) (nat_lit 65535)

/-- The waits in the first `k` slots of a stream, up to the first slot that is not used. -/
noncomputable def waitsOf (k : Nat) : Nat → List Wait :=
  Nat.rec (fun _ => .nil)
    (fun _ ih s => cond (isUnused s) .nil
      (.cons ⟨u16 s (nat_lit 0), u16 s (nat_lit 16)⟩ (ih (Nat.shiftRight s (nat_lit 32))))) k

/-- The signals in the first `k` slots of a stream, up to the first slot that is not used. -/
noncomputable def signalsOf (k : Nat) : Nat → List Nat :=
  Nat.rec (fun _ => .nil)
    (fun _ ih s => cond (isUnused s) .nil (.cons (u16 s (nat_lit 0)) (ih (Nat.shiftRight s (nat_lit 16))))) k

/-- No slot of `bits` bits is used after one that is not: interpreters that stop at the first unused slot and those
    that skip unused slots read the same. `was` : an unused slot came before. -/
noncomputable def noGaps (bits k : Nat) : Bool → Nat → Bool :=
  Nat.rec (fun _ _ => true)
    (fun _ ih was s => cond (isUnused s) (ih true (Nat.shiftRight s bits))
      (cond was false (ih false (Nat.shiftRight s bits)))) k

noncomputable def packetOf (r : Nat) : Packet :=
  ⟨u16 r (nat_lit 0), waitsOf (nat_lit 4) (Nat.shiftRight r (nat_lit 96)),
    signalsOf (nat_lit 2) (Nat.shiftRight r (nat_lit 224))⟩

/-- A program's records, from pieces of `k` packets each (short literals parse fastest). -/
noncomputable def join (k : Nat) (pieces : List Nat) : Nat :=
  List.rec (nat_lit 0) (fun a _ ih => Nat.add a (Nat.mul ih (Nat.pow (nat_lit 2) (Nat.mul (nat_lit 256) k)))) pieces

/-- The first `k` fields of 24 bits of a stream. -/
noncomputable def fields (k : Nat) : Nat → List Nat :=
  Nat.rec (fun _ => .nil)
    (fun _ ih s => .cons (Nat.mod s (nat_lit 16777216)) (ih (Nat.shiftRight s (nat_lit 24)))) k

/-- A witness in fields of 24 bits: before, after, number of packets between, those packets. -/
noncomputable def witnessOf (s : Nat) : Witness :=
  ⟨Nat.mod s (nat_lit 16777216), Nat.mod (Nat.shiftRight s (nat_lit 24)) (nat_lit 16777216),
    fields (Nat.mod (Nat.shiftRight s (nat_lit 48)) (nat_lit 16777216)) (Nat.shiftRight s (nat_lit 72))⟩

/-- A fan in fields of 24 bits: counter, first, length, number of packets after, those packets. -/
noncomputable def fanOf (s : Nat) : FanWitness :=
  ⟨Nat.mod s (nat_lit 16777216), Nat.mod (Nat.shiftRight s (nat_lit 24)) (nat_lit 16777216),
    Nat.mod (Nat.shiftRight s (nat_lit 48)) (nat_lit 16777216),
    fields (Nat.mod (Nat.shiftRight s (nat_lit 72)) (nat_lit 16777216)) (Nat.shiftRight s (nat_lit 96))⟩

/-- The program that a payload is about. -/
noncomputable def Payload.program (p : Payload) : Program where
  size := p.size
  packet i := packetOf (p.record i)
  total c := digit c p.totals
  edges := p.witnesses.mapK (fun w => ⟨w.before, w.after⟩)
  fans := p.fans.mapK (fun f => ⟨f.first, f.length, f.afters⟩)

/-! ## The checker -/
noncomputable def allBelow (n : Nat) (f : Nat → Bool) : Bool := Nat.rec true (fun i ih => f i && ih) n

noncomputable def signalsAt (p : Program) (i : Nat) : List Nat := (p.packet i).signals
noncomputable def workerAt (p : Program) (i : Nat) : List Nat := .cons (p.packet i).worker .nil

noncomputable def isStep (c : Nat) : Bool := Nat.beq c (nat_lit 0)

noncomputable def checkWait (p : Program) (i : Nat) (w : Wait) : Bool :=
  cond (isStep w.counter) (Nat.ble w.threshold (p.total (nat_lit 0)))
    (Nat.ble w.threshold (digit w.counter (histogram (signalsAt p) i)))

/-- No packet of the same worker comes before, or the packet waits for the previous step. -/
noncomputable def checkFirst (p : Program) (i : Nat) : Bool :=
  cond (Nat.beq (digit (p.packet i).worker (histogram (workerAt p) i)) (nat_lit 0))
    ((p.packet i).waits.any (fun w => isStep w.counter && Nat.ble (p.total (nat_lit 0)) w.threshold)) true

/-- A packet of the same worker comes later, or the packet signals the step counter. -/
noncomputable def checkLast (p : Program) (lengths i : Nat) : Bool :=
  cond (Nat.beq (digit (p.packet i).worker (histogram (workerAt p) (Nat.succ i))) (digit (p.packet i).worker lengths))
    (Nat.blt (nat_lit 0) (count (nat_lit 0) (p.packet i).signals)) true

/-- The record is well formed: it carries its own number, and its slots have no gaps. -/
noncomputable def checkRecord (i r : Nat) : Bool :=
  Nat.beq (u32 r (nat_lit 32)) i &&
  (noGaps (nat_lit 32) (nat_lit 4) false (Nat.shiftRight r (nat_lit 96)) &&
    noGaps (nat_lit 16) (nat_lit 2) false (Nat.shiftRight r (nat_lit 224)))

noncomputable def checkPacket (p : Payload) (i : Nat) : Bool :=
  checkRecord i (p.record i) &&
  ((p.program.packet i).waits.all (checkWait p.program i) &&
  (fits (signalsAt p.program i) (histogram (signalsAt p.program) i) &&
  (fits (workerAt p.program i) (histogram (workerAt p.program) i) &&
  (checkFirst p.program i && checkLast p.program p.lengths i))))

/-- `a` is enforced before `b` by a worker's list or by a counter. -/
noncomputable def checkHop (p : Program) (a b : Nat) : Bool :=
  ((Nat.blt a b && Nat.blt b p.size) && Nat.beq (p.packet a).worker (p.packet b).worker) ||
  (Nat.blt a p.size && (p.packet b).waits.any (fun w =>
    !(isStep w.counter) && (Nat.ble (p.total w.counter) w.threshold &&
      Nat.blt (nat_lit 0) (count w.counter (p.packet a).signals))))

noncomputable def checkChain (p : Program) (b : Nat) (via : List Nat) : Nat → Bool :=
  List.rec (fun a => checkHop p a b) (fun h _ ih a => checkHop p a h && ih h) via

noncomputable def checkWitness (p : Payload) (w : Witness) : Bool := checkChain p.program w.after w.via w.before

/-- `u` signals the counter of a fan. -/
noncomputable def checkMaker (p : Program) (c u : Nat) : Bool :=
  Nat.blt u p.size && Nat.blt (nat_lit 0) (count c (p.packet u).signals)

/-- `v` waits for all signals of the counter of a fan. -/
noncomputable def checkUser (p : Program) (c v : Nat) : Bool :=
  (p.packet v).waits.any (fun w => Nat.beq w.counter c && Nat.ble (p.total c) w.threshold)

noncomputable def checkFan (p : Program) (x : FanWitness) : Bool :=
  !(isStep x.counter) && (allBelow x.length (fun i => checkMaker p x.counter (Nat.add x.first i)) &&
    x.afters.all (checkUser p x.counter))

/-- The counts that the packet file states are the true ones. -/
noncomputable def checkTotals (p : Payload) : Bool :=
  Nat.beq (histogram (signalsAt p.program) p.size) p.totals
noncomputable def checkLengths (p : Payload) : Bool :=
  Nat.beq (histogram (workerAt p.program) p.size) p.lengths

noncomputable def check (p : Payload) : Bool :=
  allBelow p.size (checkPacket p) && (checkTotals p && (checkLengths p &&
    (p.witnesses.all (checkWitness p) && p.fans.all (checkFan p.program))))

theorem check_eq (p : Payload) : check p =
    (allBelow p.size (checkPacket p) && (checkTotals p && (checkLengths p &&
      (p.witnesses.all (checkWitness p) && p.fans.all (checkFan p.program))))) := rfl

-- The elaborator must neither unfold payloads nor evaluate checks; the kernel ignores the attribute.
attribute [irreducible] join witnessOf fanOf packetOf check

end CounterProtocol
