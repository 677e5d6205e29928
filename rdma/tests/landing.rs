//! Batch rows against a naive model, and under several threads.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::sync::Arc;

use baton_rdma::{BatchBuffer, RowMut, RowsRef};
use proptest::prelude::*;

#[test]
fn memory_that_is_not_there_is_an_error_that_says_how_much() {
    let error = BatchBuffer::new(1 << 60).unwrap_err().to_string();
    assert!(error.contains("1152921504606846976 bytes"), "{error}");
}

#[test]
fn rows_fill_a_batch() {
    let buffer = BatchBuffer::new(100).unwrap();
    let mut first = buffer.lend(0, 30).unwrap();
    let mut last = buffer.lend(2, 30).unwrap();
    assert_eq!((first.len(), last.row()), (30, 2));
    assert!(buffer.lend(0, 30).is_none(), "lent already");
    assert!(buffer.lend(3, 30).is_none(), "only 100 bytes");
    assert!(buffer.lend(1, 20).is_none(), "another length");
    assert!(buffer.rows(1, 30).is_none(), "a row is lent");
    first.fill(1);
    last.fill(3);
    drop((first, last));
    assert!(buffer.move_row(2, 1, 30));
    let rows = buffer.rows(2, 30).unwrap();
    assert_eq!((&rows[..30], &rows[30..]), (&[1; 30][..], &[3; 30][..]));
    assert!(buffer.lend(0, 30).is_none() && buffer.rows(1, 30).is_none(), "borrowed whole");
    assert!(!buffer.move_row(0, 1, 30));
    drop(rows);
    assert!(buffer.lend(4, 20).is_some(), "a new filling, a new length");
    let (bytes, huge) = buffer.memory_bytes();
    assert!((100..=4 << 20).contains(&bytes) && huge <= bytes, "{bytes} {huge}");
}

#[test]
fn out_of_bounds() {
    let buffer = BatchBuffer::new(64).unwrap();
    assert!(buffer.lend(u32::MAX, u32::MAX).is_none());
    assert!(buffer.lend(1024, 0).is_none(), "beyond the largest batch");
    assert!(buffer.rows(u32::MAX, u32::MAX).is_none());
    assert!(!buffer.move_row(0, 2, 32) && !buffer.move_row(2, 0, 32));
    assert!(buffer.rows(2, 32).is_some());
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Lend(u32, u32),
    Return(usize),
    Rows(u32, u32),
    ReturnRows,
    Move(u32, u32, u32),
}

fn any_op() -> impl Strategy<Value = Op> {
    let length = prop_oneof![Just(8u32), Just(16)];
    prop_oneof![
        4 => (0u32..9, length.clone()).prop_map(|(row, len)| Op::Lend(row, len)),
        4 => (0usize..8).prop_map(Op::Return),
        1 => (0u32..9, length.clone()).prop_map(|(count, len)| Op::Rows(count, len)),
        1 => Just(Op::ReturnRows),
        1 => (0u32..9, 0u32..9, length).prop_map(|(from, to, len)| Op::Move(from, to, len)),
    ]
}

const BYTES: usize = 64;

/// The buffer, what is out of it, and the bytes it should hold.
struct Rig {
    buffer: Arc<BatchBuffer>,
    rows: Vec<RowMut>,
    whole: Option<RowsRef>,
    bytes: [u8; BYTES],
    next: u8,
}

impl Rig {
    fn idle(&self) -> bool {
        self.rows.is_empty() && self.whole.is_none()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Lend(row, len) => {
                let same = self.rows.iter().all(|out| out.len() == len as usize);
                let free = self.rows.iter().all(|out| out.row() != row);
                let fits = (row + 1) * len <= BYTES as u32;
                let lent = self.buffer.lend(row, len);
                assert_eq!(lent.is_some(), same && free && fits && self.whole.is_none());
                let Some(mut lent) = lent else { return };
                self.next = self.next.wrapping_add(1);
                lent.fill(self.next);
                let (row, len) = (row as usize, len as usize);
                self.bytes[row * len..(row + 1) * len].fill(self.next);
                self.rows.push(lent);
            }
            Op::Return(at) => {
                if !self.rows.is_empty() {
                    self.rows.swap_remove(at % self.rows.len());
                }
            }
            Op::Rows(count, len) => {
                let fits = count * len <= BYTES as u32;
                let expected = self.idle() && fits;
                let rows = self.buffer.rows(count, len);
                assert_eq!(rows.is_some(), expected);
                let Some(rows) = rows else { return };
                assert_eq!(&rows[..], &self.bytes[..(count * len) as usize]);
                self.whole = Some(rows);
            }
            Op::ReturnRows => self.whole = None,
            Op::Move(from, to, len) => {
                let fits = (from.max(to) + 1) * len <= BYTES as u32;
                let moved = self.buffer.move_row(from, to, len);
                assert_eq!(moved, self.idle() && fits);
                let (from, to, len) = (from as usize, to as usize, len as usize);
                if moved {
                    self.bytes.copy_within(from * len..(from + 1) * len, to * len);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn as_the_model(ops in prop::collection::vec(any_op(), 1..120)) {
        let buffer = BatchBuffer::new(BYTES).unwrap();
        let mut rig = Rig { buffer, rows: vec![], whole: None, bytes: [0; BYTES], next: 0 };
        for op in ops {
            rig.apply(op);
        }
        rig.rows.clear();
        rig.whole = None;
        prop_assert_eq!(&rig.buffer.rows(8, 8).unwrap()[..], &rig.bytes[..]);
    }
}

/// Threads fill disjoint rows of one batch again and again; each batch is read as a whole.
#[test]
fn threads_fill_rows() {
    const ROWS: u32 = 8;
    const LEN: u32 = 100;
    let buffer = BatchBuffer::new((ROWS * LEN) as usize).unwrap();
    for round in 0..200u32 {
        std::thread::scope(|scope| {
            for half in 0..2 {
                let buffer = &buffer;
                scope.spawn(move || {
                    for row in (0..ROWS).filter(|row| row % 2 == half) {
                        buffer.lend(row, LEN).unwrap().fill((round + row) as u8);
                    }
                });
            }
        });
        let rows = buffer.rows(ROWS, LEN).unwrap();
        for (row, bytes) in (0..).zip(rows.chunks(LEN as usize)) {
            assert!(bytes.iter().all(|&byte| byte == (round + row) as u8));
        }
    }
}
