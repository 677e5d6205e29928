//! Numbers that are not finite: a model that overflows, or a GPU that computes nonsense, is better without an answer.

use baton_topo::signature::ElementType;

/// Whether all numbers of a tensor are finite. Integers are.
pub(super) fn is_finite(element: ElementType, bytes: &[u8]) -> bool {
    // All bits of the exponent are set in what is none.
    match element {
        ElementType::F32 => {
            const EXPONENT: u32 = 0xff << 23;
            let mut words = bytes.as_chunks::<4>().0.iter();
            words.all(|&word| u32::from_le_bytes(word) & EXPONENT != EXPONENT)
        }
        ElementType::F64 => {
            const EXPONENT: u64 = 0x7ff << 52;
            let mut words = bytes.as_chunks::<8>().0.iter();
            words.all(|&word| u64::from_le_bytes(word) & EXPONENT != EXPONENT)
        }
        ElementType::F16 => never_full(bytes, 0x7c00),
        ElementType::Bf16 => never_full(bytes, 0x7f80),
        _ => true,
    }
}

fn never_full(bytes: &[u8], exponent: u16) -> bool {
    let mut words = bytes.as_chunks::<2>().0.iter();
    words.all(|&word| u16::from_le_bytes(word) & exponent != exponent)
}

/// Warns once for each model: any input may cause it, as often as it comes.
pub(super) struct Watch {
    model: String,
    has_warned: bool,
}

impl Watch {
    pub(super) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), has_warned: false }
    }

    /// This number of rows of a batch have no answer.
    pub(super) fn note(&mut self, rows: u32) {
        if rows > 0 && !self.has_warned {
            self.has_warned = true;
            tracing::warn!(
                model = self.model,
                rows,
                "an answer has a number that is not finite: its task fails (engine), and later ones will without a word; \
                 look at the inputs, or export the model in a wider type"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn what_is_not_finite_is_seen_in_every_type() {
        let fine = [0.0, -0.0, f32::MAX, f32::MIN_POSITIVE, 1e-42];
        let bad = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
        for (value, finite) in
            fine.map(|value| (value, true)).into_iter().chain(bad.map(|value| (value, false)))
        {
            let single = [1_f32.to_le_bytes(), value.to_le_bytes()].concat();
            assert_eq!(is_finite(ElementType::F32, &single), finite, "{value}");
            let double = [1_f64.to_le_bytes(), f64::from(value).to_le_bytes()].concat();
            assert_eq!(is_finite(ElementType::F64, &double), finite, "{value}");
        }
        for (value, finite) in [(f16::MAX, true), (f16::INFINITY, false), (f16::NAN, false)] {
            assert_eq!(is_finite(ElementType::F16, &value.to_le_bytes()), finite, "{value}");
        }
        for (value, finite) in [(bf16::MAX, true), (bf16::INFINITY, false), (bf16::NAN, false)] {
            assert_eq!(is_finite(ElementType::Bf16, &value.to_le_bytes()), finite, "{value}");
        }
        assert!(is_finite(ElementType::I32, &(-1_i32).to_le_bytes()), "all bits are set");
    }
}
