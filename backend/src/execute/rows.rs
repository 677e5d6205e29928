//! A batch's rows as an engine sees them: inputs of different lengths, and room for an answer to each.

use baton_topo::signature::Signature;
use baton_types::FailReason;

/// The inputs of a batch, one per row.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    bytes: &'a [u8],
    /// From one row's beginning to the next's.
    stride: usize,
    lens: &'a [u32],
}

impl<'a> Inputs<'a> {
    /// Row `i` is the first `lens[i]` of the `stride` bytes from `i · stride`.
    ///
    /// # Panics
    /// A row is longer than the stride, or `bytes` is too short.
    pub fn new(bytes: &'a [u8], stride: u32, lens: &'a [u32]) -> Self {
        let stride = stride as usize;
        assert!(lens.iter().all(|&len| len as usize <= stride), "rows overlap");
        assert!(bytes.len() >= lens.len() * stride, "rows are missing");
        Self { bytes, stride, lens }
    }

    /// How many rows there are.
    pub fn len(&self) -> u32 {
        self.lens.len() as u32
    }

    /// True for no row.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// One row.
    pub fn row(&self, row: u32) -> &'a [u8] {
        let from = row as usize * self.stride;
        &self.bytes[from..from + self.lens[row as usize] as usize]
    }

    /// All rows, one behind the other, if each fills its stride.
    pub fn whole(&self) -> Option<&'a [u8]> {
        let full = self.lens.iter().all(|&len| len as usize == self.stride);
        full.then(|| &self.bytes[..self.lens.len() * self.stride])
    }
}

/// Room for the answers of a batch. Allocated once for the largest.
#[derive(Default, Debug)]
pub struct Outputs {
    bytes: Vec<u8>,
    stride: usize,
    answers: Vec<Result<u32, FailReason>>,
}

impl Outputs {
    /// Room for `rows` answers of `bytes` bytes in all, without another allocation; `None` if the machine does not give it.
    pub fn with_room(rows: u32, bytes: usize) -> Option<Self> {
        let mut room = Self { answers: Vec::with_capacity(rows as usize), ..Self::default() };
        room.bytes.try_reserve_exact(bytes).ok().map(|()| room)
    }

    /// Room for `rows` answers of up to `stride` bytes, each that long unless an engine says otherwise. It holds whatever
    /// the batch before left there.
    pub fn reset(&mut self, rows: u32, stride: u32) {
        self.stride = stride as usize;
        self.bytes.resize(rows as usize * self.stride, 0);
        self.answers.clear();
        self.answers.resize(rows as usize, Ok(stride));
    }

    /// How many rows there are.
    pub fn len(&self) -> u32 {
        self.answers.len() as u32
    }

    /// True for no row.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Bytes of all answers together, at most.
    pub fn bytes(&self) -> usize {
        self.answers.len() * self.stride
    }

    /// Room for the answer to one row.
    pub fn row_mut(&mut self, row: u32) -> &mut [u8] {
        let from = row as usize * self.stride;
        &mut self.bytes[from..from + self.stride]
    }

    /// How one row went: the length of its answer, which is in its room, or why there is none.
    ///
    /// # Panics
    /// The answer is longer than its room.
    pub fn set(&mut self, row: u32, answer: Result<u32, FailReason>) {
        assert!(answer.is_ok_and(|len| len as usize <= self.stride) || answer.is_err(), "no room");
        self.answers[row as usize] = answer;
    }

    /// Rows without an answer.
    pub fn unanswered(&self) -> u32 {
        self.answers.iter().filter(|answer| answer.is_err()).count() as u32
    }

    /// The answer to one row.
    ///
    /// # Errors
    /// Why there is none.
    pub fn row(&self, row: u32) -> Result<&[u8], FailReason> {
        let len = self.answers[row as usize]? as usize;
        let from = row as usize * self.stride;
        Ok(&self.bytes[from..from + len])
    }
}

/// A batch of zeros of the longest extents: what a model is proved and measured with.
pub(super) struct Zeros {
    bytes: Vec<u8>,
    lens: Vec<u32>,
    stride: u32,
}

impl Zeros {
    pub(super) fn new(signature: &Signature, batch: u32) -> Self {
        let stride = signature.input.bytes_max();
        let bytes = signature.input.zeros().repeat(batch as usize);
        Self { bytes, lens: vec![stride; batch as usize], stride }
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs::new(&self.bytes, self.stride, &self.lens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_own_lengths() {
        let bytes: Vec<u8> = (0..12).collect();
        let inputs = Inputs::new(&bytes, 4, &[4, 1, 0]);
        assert_eq!((inputs.row(0), inputs.row(1)), (&bytes[..4], &bytes[4..5]));
        assert_eq!((inputs.row(2).len(), inputs.whole()), (0, None));
        assert_eq!(Inputs::new(&bytes, 4, &[4, 4]).whole(), Some(&bytes[..8]));
    }

    #[test]
    fn each_row_has_an_answer_or_a_reason() {
        let mut outputs = Outputs::with_room(4, 16).unwrap();
        outputs.reset(3, 4);
        outputs.row_mut(1).copy_from_slice(&[1, 2, 3, 4]);
        outputs.set(1, Ok(2));
        outputs.set(2, Err(FailReason::Engine));
        assert_eq!(outputs.row(0), Ok(&[0; 4][..]));
        assert_eq!(outputs.row(1), Ok(&[1, 2][..]));
        assert_eq!(outputs.row(2), Err(FailReason::Engine));
        assert_eq!(outputs.unanswered(), 1);
        outputs.reset(1, 4);
        assert_eq!(outputs.len(), 1);
    }

    #[test]
    fn the_largest_batch_needs_no_more_room() {
        let mut outputs = Outputs::with_room(4, 16).unwrap();
        let room = |outputs: &Outputs| (outputs.bytes.capacity(), outputs.answers.capacity());
        let before = room(&outputs);
        outputs.reset(4, 4);
        assert_eq!(room(&outputs), before);
    }
}
