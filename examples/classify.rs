//! Classifies handwritten digits the model has never seen and prints how many it gets right.
//!
//!     cargo run -p baton-client --example classify -- 127.0.0.1:7700 [model] [heldout.bin]

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::process::ExitCode;

use baton_client::{Client, ClientConfig, Deadline, Outcome};

/// What one image of `heldout.bin` consists of, 4 bytes each: pixels, reference logits, a label.
const PIXELS: usize = 64;
const CLASSES: usize = 10;
const RECORD: usize = 4 * (PIXELS + CLASSES + 1);
const HEADER: usize = 20;

/// The images beside this file, wherever the program is started.
const HELDOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/heldout.bin");

struct Image<'a> {
    pixels: &'a [u8],
    label: usize,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the accuracy is this program's result")]
fn run() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let scheduler = args.next().unwrap_or_else(|| "127.0.0.1:7700".into());
    let name = args.next().unwrap_or_else(|| "digits".into());
    let path = args.next().unwrap_or_else(|| HELDOUT.into());
    let file = fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let images = parse(&file).map_err(|what| format!("{path}: {what}"))?;

    let client = Client::connect(ClientConfig::new(address(&scheduler)?).models([&name]))?;
    let model = client.model(&name)?;
    let (mut right, mut answered) = (0, 0);
    for image in &images {
        match model.input_from(image.pixels)?.submit(Deadline::Slo)?.wait() {
            Outcome::Completed(reply) => {
                answered += 1;
                right += usize::from(best_class(reply.as_f32()?) == Some(image.label));
            }
            unanswered => println!("{}", unanswered.explain()),
        }
    }
    let percent = 100.0 * f64::from(right as u32) / f64::from(answered.max(1) as u32);
    println!("{answered} of {} images answered, {right} right ({percent:.1} %)", images.len());
    client.leave()?;
    Ok(())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text}: give the scheduler as 127.0.0.1:7700"))
}

/// The file: magic `BDIG`, then u32 version, count, pixels, classes, then the records.
fn parse(file: &[u8]) -> Result<Vec<Image<'_>>, &'static str> {
    let (header, records) = file.split_at_checked(HEADER).ok_or("shorter than its header")?;
    let number = |at: usize| le_u32(&header[at..at + 4]) as usize;
    if &header[..4] != b"BDIG" || number(4) != 1 {
        return Err("not a held-out file of version 1");
    }
    if number(12) != PIXELS || number(16) != CLASSES || records.len() != number(8) * RECORD {
        return Err("its sizes are not those of the digits");
    }
    let image = |record: &[u8]| le_u32(&record[RECORD - 4..]) as usize;
    let images = records.chunks_exact(RECORD);
    Ok(images.map(|r| Image { pixels: &r[..4 * PIXELS], label: image(r) }).collect())
}

/// The class with the largest logit.
fn best_class(logits: &[f32]) -> Option<usize> {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(class, _)| class)
}

/// `bytes` has four.
fn le_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
