//! The bare loop: launch, event, launch. Inputs stay on the device; the next launch is behind the one that executes.

use baton_core::Nanos;
use baton_cuda::{CHECKSUM, Driver, Event, HostSource, Lane, header};

use super::{GpuBenchError, ROW_BYTES, Rig};

/// Copies of a batch's rows, one after the other, whose median is the bare rate.
const COPIES: u32 = 50;
/// Launches under way.
const UNDER_WAY: usize = 2;

/// What a turn came to.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Bare {
    pub(super) batches: u32,
    /// On the host's clock, for all.
    pub(super) took: Nanos,
    /// By the device's clock, each.
    pub(super) executions: Vec<Nanos>,
    /// By the device's clock: the copies of a batch's rows.
    pub(super) copies: Vec<Nanos>,
}

/// Executes that number of batches.
pub(super) fn run<R: Rig>(
    rig: &mut R,
    batches: u32,
    rows: u32,
    time: Nanos,
) -> Result<Bare, GpuBenchError> {
    let mut driver = rig.driver()?;
    let (input, stream) = (driver.stream(Lane::In)?, driver.stream(Lane::Run)?);
    let kernel = driver.load(&CHECKSUM)?;
    let mut head = Vec::new();
    header(time.0, ROW_BYTES, &vec![ROW_BYTES; rows as usize], &mut head);
    let bytes = (rows * ROW_BYTES) as usize;
    let answers = driver.allocate(8 * rows as usize)?;
    let (on_device, host) = (driver.allocate(bytes)?, driver.allocate_host(bytes)?);
    let (device_head, host_head) =
        (driver.allocate(head.len())?, driver.allocate_host(head.len())?);
    driver.write(host_head, &head);
    driver.write(host, &[1; 16]);
    driver.copy_in(input, device_head, HostSource::Block(host_head), head.len())?;
    let mut copies = Vec::new();
    let span = [driver.event()?, driver.event()?];
    for _ in 0..COPIES {
        driver.record(span[0], input)?;
        driver.copy_in(input, on_device, HostSource::Block(host), bytes)?;
        driver.record(span[1], input)?;
        wait(rig, &mut driver, span[1])?;
        copies.push(driver.elapsed(span[0], span[1])?);
    }
    driver.wait(stream, span[1])?;
    let launch = |driver: &mut R::Driver, [start, end]: [Event; 2]| {
        driver.record(start, stream)?;
        driver.launch(stream, kernel, rows, &[on_device, device_head, answers])?;
        driver.record(end, stream)
    };
    let mut spans = Vec::new();
    for _ in 0..UNDER_WAY {
        spans.push([driver.event()?, driver.event()?]);
    }
    let mut executions = Vec::with_capacity(batches as usize);
    let started = rig.now();
    for batch in 0..batches as usize + UNDER_WAY {
        let span = spans[batch % UNDER_WAY];
        if batch >= UNDER_WAY {
            wait(rig, &mut driver, span[1])?;
            executions.push(driver.elapsed(span[0], span[1])?);
        }
        if batch < batches as usize {
            launch(&mut driver, span)?;
        }
    }
    Ok(Bare { batches, took: rig.now() - started, executions, copies })
}

fn wait<R: Rig>(rig: &mut R, driver: &mut R::Driver, event: Event) -> Result<(), GpuBenchError> {
    while !driver.has_ended(event)? {
        rig.spin();
    }
    Ok(())
}
