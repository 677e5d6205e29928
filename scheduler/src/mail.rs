//! What ModelThreads and RankThread send each other, as words of a ring.

use baton_core::{Gpu, GpuId, GpuUpdate, Grant, ModelId, Nanos, Pace, SlotPart, Slowdown};

use crate::board::COARSE;

/// Words of a message.
pub(crate) const WORDS: usize = 4;
pub(crate) type Packed = [u64; WORDS];

/// To the RankThread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ToRank {
    /// News of a slot that was granted to the model.
    Update(ModelId, GpuUpdate),
    /// Candidates were published: bit b stands for model 64 · `word` + b.
    Changed { word: u32, models: u64 },
}

const PLANNED: u64 = 0;
const RETURNED: u64 = 1;
const FINISHED: u64 = 2;
const CHANGED: u64 = 3;
/// The kind shares its word with the model and with the work of a batch, which is an hour at most, or its pace.
const KIND_BITS: u32 = 2;
const KIND: u64 = (1 << KIND_BITS) - 1;
const MODEL_BITS: u32 = 20;
const HEAD_BITS: u32 = KIND_BITS + MODEL_BITS;
const _: () = assert!(baton_topo::MODELS_MAX <= 1 << MODEL_BITS);
const _: () = assert!(MODEL_BITS + SlotPart::BITS <= u32::BITS);

fn head(kind: u64, ModelId(model): ModelId, rest: u64) -> u64 {
    kind | u64::from(model) << KIND_BITS | rest.min(u64::MAX >> HEAD_BITS) << HEAD_BITS
}

/// How long before its start a batch has its inputs, in steps of [`COARSE`], shares a word with its latency, which is an hour
/// at most. The largest number says that it is not known.
const EARLY_BITS: u32 = 22;
const EARLY_UNKNOWN: u64 = (1 << EARLY_BITS) - 1;

fn length_word(start: Nanos, latency: Nanos, fetched_at: Option<Nanos>) -> u64 {
    let early =
        fetched_at.map_or(EARLY_UNKNOWN, |at| ((start - at).0 >> COARSE).min(EARLY_UNKNOWN - 1));
    latency.0.min(u64::MAX >> EARLY_BITS) << EARLY_BITS | early
}

fn lengths_of(start: Nanos, word: u64) -> (Nanos, Option<Nanos>) {
    let early = word & EARLY_UNKNOWN;
    let fetched_at = (early != EARLY_UNKNOWN).then(|| start - Nanos(early << COARSE));
    (Nanos(word >> EARLY_BITS), fetched_at)
}

impl ToRank {
    pub(crate) fn pack(self) -> Packed {
        match self {
            Self::Update(model, GpuUpdate::Planned { gpu, start, latency, work, fetched_at }) => {
                let lengths = length_word(start, latency, fetched_at);
                [head(PLANNED, model, work.0), gpu_word(gpu), start.0, lengths]
            }
            Self::Update(model, GpuUpdate::Returned { gpu }) => {
                [head(RETURNED, model, 0), gpu_word(gpu), 0, 0]
            }
            Self::Update(model, GpuUpdate::Finished { gpu, at, pace, fetched_at }) => {
                let pace = pace.map_or(0, Pace::to_bits);
                let fetched_at = fetched_at.map_or(0, |at| at.0);
                [head(FINISHED, model, pace.into()), gpu_word(gpu), at.0, fetched_at]
            }
            Self::Changed { word, models } => [CHANGED, word.into(), models, 0],
        }
    }

    pub(crate) fn unpack([kind, first, second, third]: Packed) -> Self {
        let (gpu, rest) = (gpu_of(first), kind >> HEAD_BITS);
        let model = ModelId((kind >> KIND_BITS) as u32 & ((1 << MODEL_BITS) - 1));
        match kind & KIND {
            PLANNED => {
                let (start, work) = (Nanos(second), Nanos(rest));
                let (latency, fetched_at) = lengths_of(start, third);
                Self::Update(model, GpuUpdate::Planned { gpu, start, latency, work, fetched_at })
            }
            RETURNED => Self::Update(model, GpuUpdate::Returned { gpu }),
            FINISHED => {
                let pace = Pace::from_bits(rest as u32);
                let fetched_at = (third > 0).then_some(Nanos(third));
                let at = Nanos(second);
                Self::Update(model, GpuUpdate::Finished { gpu, at, pace, fetched_at })
            }
            _ => Self::Changed { word: first as u32, models: second },
        }
    }
}

/// The slowdown shares its word with the port wait, in steps of [`PORT_STEP`], the slots to spare, of which more than fit
/// count as those that do, two flags, and the slot wait, in steps of [`COARSE`], which is a quarter of a minute at most.
const SLOWDOWN_BITS: u32 = 12;
const PORT_BITS: u32 = 16;
const PORT_STEP: u32 = 12;
const SPARE_BITS: u32 = 10;
const FLAG_BITS: u32 = 2;
const WAIT_BITS: u32 = u64::BITS - SLOWDOWN_BITS - PORT_BITS - SPARE_BITS - FLAG_BITS;

/// To a ModelThread. What the grant allows, and a part of a slot, share their word with the model.
pub(crate) fn pack_grant(model: ModelId, grant: Grant) -> Packed {
    let longest = (grant.longest.0 >> COARSE).min(u32::MAX.into());
    let part = u64::from(grant.part.to_bits()) << MODEL_BITS;
    let head = longest << 32 | part | u64::from(model.0);
    let wait = grant.slot_wait.0.div_ceil(1 << COARSE).min((1 << WAIT_BITS) - 1);
    let spare = u64::from(grant.spare).min((1 << SPARE_BITS) - 1);
    let port = grant.port_wait.0.div_ceil(1 << PORT_STEP).min((1 << PORT_BITS) - 1);
    let flags = u64::from(grant.others_lose) << 1 | u64::from(grant.is_short_of_slots);
    let rest = ((wait << FLAG_BITS | flags) << SPARE_BITS | spare) << PORT_BITS | port;
    let tail = rest << SLOWDOWN_BITS | grant.slowdown.in_256ths();
    [head, gpu_word(grant.gpu), grant.free_at.0, tail]
}

#[inline]
pub(crate) fn unpack_grant([head, gpu, free_at, tail]: Packed) -> (ModelId, Grant) {
    let longest = match (head >> 32) as u32 {
        u32::MAX => Nanos::MAX,
        coarse => Nanos(u64::from(coarse) << COARSE),
    };
    let slowdown = Slowdown::from_256ths(tail & ((1 << SLOWDOWN_BITS) - 1));
    let port = tail >> SLOWDOWN_BITS & ((1 << PORT_BITS) - 1);
    let rest = tail >> (SLOWDOWN_BITS + PORT_BITS);
    let spare = (rest & ((1 << SPARE_BITS) - 1)) as u32;
    let [is_short_of_slots, others_lose] = [0, 1].map(|flag| rest >> (SPARE_BITS + flag) & 1 == 1);
    let slot_wait = Nanos((rest >> (SPARE_BITS + FLAG_BITS)) << COARSE);
    let (gpu, free_at, port_wait) = (gpu_of(gpu), Nanos(free_at), Nanos(port << PORT_STEP));
    let part = SlotPart::from_bits(head as u32 >> MODEL_BITS);
    let grant = Grant {
        gpu,
        free_at,
        port_wait,
        slowdown,
        slot_wait,
        longest,
        spare,
        part,
        is_short_of_slots,
        others_lose,
    };
    (ModelId(head as u32 & ((1 << MODEL_BITS) - 1)), grant)
}

fn gpu_word(gpu: Gpu) -> u64 {
    u64::from(gpu.life) << 32 | u64::from(gpu.id.0)
}

fn gpu_of(word: u64) -> Gpu {
    Gpu { id: GpuId(word as u32), life: (word >> 32) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_too_long_counts_as_the_longest() {
        let gpu = Gpu { id: GpuId(0), life: 0 };
        let planned = |work| {
            let (start, latency, fetched_at) = (Nanos(0), Nanos(0), None);
            ToRank::Update(ModelId(1), GpuUpdate::Planned { gpu, start, latency, work, fetched_at })
        };
        let longest = planned(Nanos(u64::MAX >> HEAD_BITS));
        assert_eq!(ToRank::unpack(planned(Nanos::MAX).pack()), longest);
    }

    #[test]
    fn what_of_a_grant_is_too_much_counts_as_the_most_and_leaves_the_rest_alone() {
        let gpu = Gpu { id: GpuId(0), life: 0 };
        let most = Grant {
            gpu,
            free_at: Nanos(5),
            port_wait: Nanos(((1 << PORT_BITS) - 1) << PORT_STEP),
            slowdown: Slowdown::NONE,
            slot_wait: Nanos(((1 << WAIT_BITS) - 1) << COARSE),
            longest: Nanos::MAX,
            spare: (1 << SPARE_BITS) - 1,
            part: SlotPart::new(31, Nanos::MAX),
            is_short_of_slots: false,
            others_lose: false,
        };
        let packed = |grant| unpack_grant(pack_grant(ModelId(1), grant)).1;
        let all = Nanos::MAX;
        assert_eq!(packed(Grant { port_wait: all, ..most }), most);
        assert_eq!(packed(Grant { slot_wait: all, ..most }), most);
        assert_eq!(packed(Grant { spare: u32::MAX, ..most }), most);
        let little = Grant { port_wait: Nanos::ZERO, slot_wait: Nanos::ZERO, spare: 0, ..most };
        assert_eq!(packed(little), little);
        let short = Grant { is_short_of_slots: true, ..little };
        assert_eq!(packed(short), short);
    }

    /// Spans about each power of two.
    fn spans() -> impl Iterator<Item = u64> {
        (0..40).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1])
    }

    #[test]
    fn waits_are_rounded_up_and_a_grant_never_seems_better_than_it_is() {
        let rounded = |span: u64, step: u32, bits: u32| {
            Nanos(span.div_ceil(1 << step).min((1 << bits) - 1) << step)
        };
        for span in spans() {
            let grant = Grant {
                gpu: Gpu { id: GpuId(0), life: 0 },
                free_at: Nanos(span),
                port_wait: Nanos(span),
                slowdown: Slowdown::NONE,
                slot_wait: Nanos(span),
                longest: Nanos(span),
                spare: 0,
                part: SlotPart::NONE,
                is_short_of_slots: false,
                others_lose: false,
            };
            let expected = Grant {
                port_wait: rounded(span, PORT_STEP, PORT_BITS),
                slot_wait: rounded(span, COARSE, WAIT_BITS),
                longest: Nanos(span >> COARSE << COARSE),
                ..grant
            };
            assert_eq!(unpack_grant(pack_grant(ModelId(0), grant)), (ModelId(0), expected));
        }
    }

    /// However long before the start: that the moment is known does not get lost.
    #[test]
    fn inputs_that_are_there_early_seem_no_earlier_than_they_are() {
        let (start, gpu) = (Nanos(1 << 50), Gpu { id: GpuId(0), life: 0 });
        let planned = |fetched_at| {
            let (latency, work) = (Nanos(1), Nanos(1));
            ToRank::Update(ModelId(0), GpuUpdate::Planned { gpu, start, latency, work, fetched_at })
        };
        for early in spans() {
            let coarse = (early >> COARSE).min(EARLY_UNKNOWN - 1) << COARSE;
            let message = planned(Some(start - Nanos(early)));
            assert_eq!(ToRank::unpack(message.pack()), planned(Some(start - Nanos(coarse))));
        }
    }

    #[test]
    fn what_is_unpacked_is_what_was_packed() {
        let gpu = Gpu { id: GpuId(u32::MAX - 1), life: u32::MAX };
        let (start, latency) = (Nanos(u64::MAX), Nanos(u64::MAX >> EARLY_BITS));
        let work = Nanos(u64::MAX >> HEAD_BITS);
        let model = ModelId((1 << MODEL_BITS) - 1);
        let slowest = Pace::of(Nanos::MAX, Nanos(1));
        let planned = |fetched_at| {
            ToRank::Update(model, GpuUpdate::Planned { gpu, start, latency, work, fetched_at })
        };
        let finished = |pace, fetched_at| {
            ToRank::Update(model, GpuUpdate::Finished { gpu, at: start, pace, fetched_at })
        };
        for message in [
            planned(None),
            planned(Some(start)),
            planned(Some(start - Nanos(7 << COARSE))),
            ToRank::Update(model, GpuUpdate::Returned { gpu }),
            finished(None, None),
            finished(Some(slowest), Some(latency)),
            ToRank::Changed { word: 7, models: 1 << 63 | 1 },
        ] {
            assert_eq!(ToRank::unpack(message.pack()), message);
        }
        for longest in [Nanos(0), Nanos(5 << COARSE), Nanos::MAX] {
            let slot_wait = Nanos(((1 << WAIT_BITS) - 1) << COARSE);
            let (port_wait, spare) = (Nanos(9 << PORT_STEP), (1 << SPARE_BITS) - 1);
            let slowdown = Slowdown::from_256ths(u64::MAX);
            let grant = Grant {
                gpu,
                free_at: latency,
                port_wait,
                slowdown,
                slot_wait,
                longest,
                spare,
                part: SlotPart::new(21, latency),
                is_short_of_slots: spare % 2 == 1,
                others_lose: longest.0 == 0,
            };
            let model = ModelId((1 << MODEL_BITS) - 9);
            assert_eq!(unpack_grant(pack_grant(model, grant)), (model, grant));
        }
    }
}
