//! Bytes from a hostile peer, through the code that takes them off a TCP connection.
//!
//! The first two bytes of the input say how the rest is cut into pieces; the rest is the stream. It
//! must not panic, and how it is cut must make no difference to what comes out of it.
#![no_main]

use baton_rdma::frame::FrameBuffer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((cut, stream)) = input.split_first_chunk::<2>() else { return };
    let piece = usize::from(u16::from_le_bytes(*cut)).max(1);
    let whole = receive(stream, stream.len() + 1);
    assert_eq!(whole, receive(stream, piece));
});

/// What the receive path makes of a stream that arrives in pieces of `piece` bytes: each frame's
/// decoded body as text, the payload bytes behind it, and how the stream ends.
fn receive(stream: &[u8], piece: usize) -> (Vec<(String, usize)>, String) {
    let mut buffer = FrameBuffer::new();
    let mut frames = Vec::new();
    let mut rest = stream;
    loop {
        let spare = buffer.spare(piece);
        let n = spare.len().min(rest.len());
        spare[..n].copy_from_slice(&rest[..n]);
        buffer.filled(n);
        rest = &rest[n..];
        if let Err(end) = take_in(&mut buffer, &mut frames) {
            return (frames, end);
        }
        if n == 0 {
            return (frames, format!("mid frame: {}", buffer.mid_frame()));
        }
    }
}

fn take_in(buffer: &mut FrameBuffer, frames: &mut Vec<(String, usize)>) -> Result<(), String> {
    loop {
        if let Some((_, taken)) = frames.last_mut() {
            let before = buffer.payload_left();
            buffer.skip_payload();
            *taken += before - buffer.payload_left();
        }
        match buffer.next_frame() {
            Ok(Some(frame)) => frames.push((format!("{:?}", frame.message), 0)),
            Ok(None) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
}
