//! What ModelThreads and RankThread send each other, as words of a ring.

use baton_core::{Gpu, GpuId, GpuUpdate, Grant, ModelId, Nanos, Pace, Slowdown};

use crate::board::COARSE;

/// Words of a message.
pub(crate) const WORDS: usize = 4;
pub(crate) type Packed = [u64; WORDS];

/// To the RankThread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ToRank {
    /// News of a slot.
    Update(GpuUpdate),
    /// Candidates were published: bit b stands for model 64 · `word` + b.
    Changed { word: u32, models: u64 },
}

const PLANNED: u64 = 0;
const RETURNED: u64 = 1;
const FINISHED: u64 = 2;
const CHANGED: u64 = 3;
/// The kind shares its word with the work of a batch, which is a few hours at most, or its pace.
const KIND_BITS: u32 = 2;
const KIND: u64 = (1 << KIND_BITS) - 1;

fn within(work: Nanos) -> u64 {
    work.0.min(u64::MAX >> KIND_BITS)
}

impl ToRank {
    pub(crate) fn pack(self) -> Packed {
        match self {
            Self::Update(GpuUpdate::Planned { gpu, start, latency, work }) => {
                [PLANNED | within(work) << KIND_BITS, gpu_word(gpu), start.0, latency.0]
            }
            Self::Update(GpuUpdate::Returned { gpu }) => [RETURNED, gpu_word(gpu), 0, 0],
            Self::Update(GpuUpdate::Finished { gpu, at, pace }) => {
                let pace = pace.map_or(0, Pace::to_bits);
                [FINISHED | u64::from(pace) << KIND_BITS, gpu_word(gpu), at.0, 0]
            }
            Self::Changed { word, models } => [CHANGED, word.into(), models, 0],
        }
    }

    pub(crate) fn unpack([kind, first, second, third]: Packed) -> Self {
        let gpu = gpu_of(first);
        match kind & KIND {
            PLANNED => Self::Update(GpuUpdate::Planned {
                gpu,
                start: Nanos(second),
                latency: Nanos(third),
                work: Nanos(kind >> KIND_BITS),
            }),
            RETURNED => Self::Update(GpuUpdate::Returned { gpu }),
            FINISHED => {
                let pace = Pace::from_bits((kind >> KIND_BITS) as u32);
                Self::Update(GpuUpdate::Finished { gpu, at: Nanos(second), pace })
            }
            _ => Self::Changed { word: first as u32, models: second },
        }
    }
}

/// The slowdown shares its word with the slot wait, which is three days at most.
const SLOWDOWN_BITS: u32 = 16;

/// To a ModelThread. What the grant allows shares its word with the model.
pub(crate) fn pack_grant(model: ModelId, grant: Grant) -> Packed {
    let longest = (grant.longest.0 >> COARSE).min(u32::MAX.into());
    let head = longest << 32 | u64::from(model.0);
    let wait = grant.slot_wait.0.min(u64::MAX >> SLOWDOWN_BITS);
    let tail = wait << SLOWDOWN_BITS | grant.slowdown.in_256ths();
    [head, gpu_word(grant.gpu), grant.free_at.0, tail]
}

#[inline]
pub(crate) fn unpack_grant([head, gpu, free_at, tail]: Packed) -> (ModelId, Grant) {
    let longest = match (head >> 32) as u32 {
        u32::MAX => Nanos::MAX,
        coarse => Nanos(u64::from(coarse) << COARSE),
    };
    let slowdown = Slowdown::from_256ths(tail & ((1 << SLOWDOWN_BITS) - 1));
    let (gpu, free_at, slot_wait) = (gpu_of(gpu), Nanos(free_at), Nanos(tail >> SLOWDOWN_BITS));
    (ModelId(head as u32), Grant { gpu, free_at, slowdown, slot_wait, longest })
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
    fn what_is_unpacked_is_what_was_packed() {
        let gpu = Gpu { id: GpuId(u32::MAX - 1), life: u32::MAX };
        let (start, latency) = (Nanos(u64::MAX), Nanos(u64::MAX - 1));
        let work = Nanos(u64::MAX >> KIND_BITS);
        let slowest = Pace::of(Nanos::MAX, Nanos(1));
        for message in [
            ToRank::Update(GpuUpdate::Planned { gpu, start, latency, work }),
            ToRank::Update(GpuUpdate::Returned { gpu }),
            ToRank::Update(GpuUpdate::Finished { gpu, at: start, pace: None }),
            ToRank::Update(GpuUpdate::Finished { gpu, at: start, pace: Some(slowest) }),
            ToRank::Changed { word: 7, models: 1 << 63 | 1 },
        ] {
            assert_eq!(ToRank::unpack(message.pack()), message);
        }
        for longest in [Nanos(0), Nanos(5 << COARSE), Nanos::MAX] {
            let slot_wait = Nanos(u64::MAX >> SLOWDOWN_BITS);
            let slowdown = Slowdown::from_256ths(333);
            let grant = Grant { gpu, free_at: latency, slowdown, slot_wait, longest };
            let model = ModelId(u32::MAX - 9);
            assert_eq!(unpack_grant(pack_grant(model, grant)), (model, grant));
        }
    }
}
