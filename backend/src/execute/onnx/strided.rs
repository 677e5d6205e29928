//! Rows into tensors whose batch dimension is any, and back. Pure.
//!
//! A row is contiguous. In a tensor with dimensions before the batch it lies in pieces, one in each block: the elements behind the
//! batch dimension. Where the batch is the first dimension, the row is one piece.

/// In how many blocks a tensor consists if a row of it has this shape: the product of the extents before the batch.
pub(super) fn blocks(row_shape: &[u32], axis: Option<usize>) -> usize {
    let before = &row_shape[..axis.unwrap_or(0)];
    before.iter().map(|&extent| extent as usize).product()
}

/// Writes rows of equal lengths into a batch that may have room for more.
pub(super) fn into_batch(rows: &[&[u8]], blocks: usize, batch: &mut [u8]) {
    if rows[0].is_empty() {
        return;
    }
    let (piece, block) = (rows[0].len() / blocks, batch.len() / blocks);
    for (number, block) in batch.chunks_exact_mut(block).enumerate() {
        for (row, place) in rows.iter().zip(block.chunks_exact_mut(piece)) {
            place.copy_from_slice(&row[number * piece..][..piece]);
        }
    }
}

/// The rows of a batch of that many, one behind the other.
pub(super) fn into_rows(batch: &[u8], blocks: usize, rows: usize) -> Vec<u8> {
    let pieces = blocks * rows;
    let piece = batch.len().checked_div(pieces).unwrap_or(0);
    let mut all = Vec::with_capacity(batch.len());
    for row in 0..rows {
        for block in 0..blocks {
            all.extend_from_slice(&batch[(block * rows + row) * piece..][..piece]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch by its definition: the element at `(block, row, behind)` is the row's own at `(block, behind)`.
    fn by_index(rows: &[Vec<u8>], blocks: usize, room: usize) -> Vec<u8> {
        let piece = rows[0].len() / blocks;
        let mut batch = vec![0; blocks * room * piece];
        for (number, row) in rows.iter().enumerate() {
            for (at, &byte) in row.iter().enumerate() {
                batch[(at / piece * room + number) * piece + at % piece] = byte;
            }
        }
        batch
    }

    #[test]
    fn rows_lie_in_pieces_where_dimensions_come_before_the_batch() {
        for (blocks, piece, count, room) in
            [(1, 6, 3, 3), (2, 3, 3, 3), (3, 2, 2, 4), (6, 1, 4, 4), (5, 4, 1, 1), (2, 8, 1, 3)]
        {
            let len = blocks * piece;
            let rows: Vec<Vec<u8>> = (0..count)
                .map(|row| (1..=len).map(|at| (row * len + at) as u8).collect())
                .collect();
            let refs: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            let mut batch = vec![0; room * len];
            into_batch(&refs, blocks, &mut batch);
            assert_eq!(
                batch,
                by_index(&rows, blocks, room),
                "{count} of {room} in {blocks} blocks"
            );
            let back = into_rows(&batch, blocks, room);
            assert_eq!(back[..count * len], rows.concat(), "{count} of {room}");
            assert!(back[count * len..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn blocks_are_what_the_extents_before_the_batch_make() {
        let of = |axis| blocks(&[2, 3, 5], axis);
        assert_eq!([None, Some(0), Some(1), Some(2), Some(3)].map(of), [1, 1, 2, 6, 30]);
        assert_eq!(blocks(&[], Some(0)), 1);
    }

    #[test]
    fn rows_of_nothing_make_a_batch_of_nothing() {
        into_batch(&[&[], &[]], 0, &mut []);
        into_batch(&[&[], &[]], 2, &mut []);
        assert!(into_rows(&[], 0, 2).is_empty());
        assert!(into_rows(&[], 2, 2).is_empty());
    }
}
