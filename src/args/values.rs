//! What the options' values may be.

use std::fs;
use std::path::PathBuf;

use baton_bench::oip::Token;
use baton_core::Policy;
use baton_topo::{Idle, TransportChoice};
use clap::builder::{PossibleValuesParser, RangedI64ValueParser, TypedValueParser};
use clap::value_parser;

pub(super) fn production_policy() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name))
        .map(|name| name.parse().expect("the parser knows these names only"))
}

pub(super) fn transport(text: &str) -> Result<TransportChoice, String> {
    use TransportChoice::{Auto, Rdma, Tcp};
    let choice = [Rdma, Tcp, Auto].into_iter().find(|choice| choice.as_str() == text);
    choice.ok_or_else(|| "give rdma, tcp or auto".to_owned())
}

pub(super) fn one_transport(text: &str) -> Result<TransportChoice, String> {
    let choice = transport(text).ok().filter(|choice| *choice != TransportChoice::Auto);
    choice.ok_or_else(|| "give rdma or tcp".to_owned())
}

pub(super) fn idle(text: &str) -> Result<Idle, String> {
    let idle = [Idle::Spin, Idle::Yield, Idle::Park].into_iter().find(|idle| idle.as_str() == text);
    idle.ok_or_else(|| "give spin, yield or park".to_owned())
}

pub(super) fn spin_or_park(text: &str) -> Result<Idle, String> {
    idle(text)
        .ok()
        .filter(|&idle| idle != Idle::Yield)
        .ok_or_else(|| "give spin or park".to_owned())
}

pub(super) fn gbps(text: &str) -> Result<f64, String> {
    number(text, 0.001, 1e5)
}

pub(super) fn processes(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (3..=10).contains(count));
    count.ok_or_else(|| "give a whole number from 3 to 10".to_owned())
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.1, 1e6)
}

/// Tasks under way at a time: at most as many as a client has slots of a model.
pub(super) fn outstanding() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=65_536)
}

/// Seconds that may be a moment.
pub(super) fn span(text: &str) -> Result<f64, String> {
    number(text, 0.01, 1e6)
}

/// Tasks per second of rare functions.
pub(super) fn functions_per_s(text: &str) -> Result<f64, String> {
    number(text, 0.01, 1e6)
}

pub(super) fn tasks(text: &str) -> Result<f64, String> {
    number(text, 1_000.0, 1e9)
}

pub(super) fn moment(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1e9)
}

pub(super) fn scale(text: &str) -> Result<f64, String> {
    number(text, 0.001, 1e3)
}

pub(super) fn requests_per_s(text: &str) -> Result<f64, String> {
    number(text, 1.0, 1e9)
}

pub(super) fn tasks_per_s(text: &str) -> Result<f64, String> {
    number(text, 1.0, 1e6)
}

pub(super) fn factor(text: &str) -> Result<f64, String> {
    number(text, 1.0, 10.0)
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    number(text, 0.01, 1.0)
}

pub(super) fn deadline_ms(text: &str) -> Result<f64, String> {
    number(text, 0.01, 1e6)
}

/// Of the tasks that must be answered in time.
pub(super) fn goodput_share(text: &str) -> Result<f64, String> {
    number(text, 0.5, 0.999_9)
}

pub(super) fn resolution(text: &str) -> Result<f64, String> {
    number(text, 0.001, 0.5)
}

/// A file, for one model or for all.
pub(super) fn expect(text: &str) -> Result<(Option<String>, PathBuf), String> {
    match text.split_once('=') {
        Some(("", _) | (_, "")) => Err("write FILE or MODEL=FILE".to_owned()),
        Some((model, file)) => Ok((Some(model.to_owned()), file.into())),
        None => Ok((None, text.into())),
    }
}

/// A token, or the file that has it.
pub(super) fn token(text: &str) -> Result<Token, String> {
    let Some(file) = text.strip_prefix('@') else { return Ok(Token(text.to_owned())) };
    let read = fs::read_to_string(file);
    let text = read.map_err(|error| {
        format!("{file} cannot be read ({error}); name the file whose only line is the token")
    })?;
    Ok(Token(text.trim_end_matches(['\r', '\n']).to_owned()))
}

pub(super) fn shape(text: &str) -> Result<(String, Vec<u32>), String> {
    let fix = "write INPUT:N,N, for example ids:128";
    let (input, extents) = text.rsplit_once(':').ok_or(fix)?;
    let extents: Result<Vec<u32>, _> = extents.split(',').map(str::parse).collect();
    Ok((input.to_owned(), extents.map_err(|_| fix)?))
}

pub(super) fn rate(text: &str) -> Result<(String, f64), String> {
    let (model, rate) = text.rsplit_once('=').ok_or("write MODEL=RATE, for example resnet50=20")?;
    Ok((model.to_owned(), number(rate, 0.0, 1e6)?))
}

fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let within = number.filter(|number| (min..=max).contains(number));
    within.ok_or_else(|| format!("give a number from {min} to {max}"))
}
