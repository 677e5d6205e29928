//! The bare loop: launch, event, launch. Inputs stay on the device; the next launch is behind the one that executes.

use baton_core::Nanos;
use baton_cuda::{
    CHECKSUM, CudaError, DeviceBlock, Driver, Event, HostSource, Kernel, Lane, Program, Stream,
    header,
};

use super::subject::{Plan, Subject};
use super::{GpuBenchError, Rig};

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

/// What is executed, with its inputs on the device.
struct Inputs<'a, G> {
    stream: Stream,
    /// `None`: the kernel. A graph has inputs of its own.
    program: Option<&'a Program<G>>,
    kernel: Kernel,
    /// Rows, header and answers.
    blocks: [DeviceBlock; 3],
    rows: u32,
}

impl<'a, G> Inputs<'a, G> {
    /// Brings the rows to the device, again and again; how long each copy took.
    fn bring<R: Rig>(
        rig: &mut R,
        driver: &mut R::Driver,
        (rows, time): Plan,
        subject: &Subject<'a, G>,
    ) -> Result<(Self, Vec<Nanos>), GpuBenchError>
    where
        R::Driver: Driver<Graph = G>,
    {
        let row_bytes = subject.row_bytes;
        let (input, stream) = (driver.stream(Lane::In)?, driver.stream(Lane::Run)?);
        let kernel = driver.load(&CHECKSUM)?;
        let mut head = Vec::new();
        header(time.0, row_bytes, &vec![row_bytes; rows as usize], &mut head);
        let bytes = (rows * row_bytes) as usize;
        let (on_device, host) = (driver.allocate(bytes)?, driver.allocate_host(bytes)?);
        let (head_there, head_here) =
            (driver.allocate(head.len())?, driver.allocate_host(head.len())?);
        driver.write(head_here, &head);
        driver.write(host, &[0; 16]);
        driver.copy_in(input, head_there, HostSource::Block(head_here), head.len())?;
        let (mut copies, span) = (Vec::new(), [driver.event()?, driver.event()?]);
        for _ in 0..COPIES {
            driver.record(span[0], input)?;
            driver.copy_in(input, on_device, HostSource::Block(host), bytes)?;
            driver.record(span[1], input)?;
            wait(rig, driver, span[1])?;
            copies.push(driver.elapsed(span[0], span[1])?);
        }
        driver.wait(stream, span[1])?;
        let blocks = [on_device, head_there, driver.allocate(8 * rows as usize)?];
        let program = subject.program(rows);
        Ok((Self { stream, program, kernel, blocks, rows }, copies))
    }

    fn launch(
        &self,
        driver: &mut impl Driver<Graph = G>,
        [start, end]: [Event; 2],
    ) -> Result<(), CudaError> {
        driver.record(start, self.stream)?;
        match self.program {
            Some(program) => driver.launch_graph(self.stream, &program.graph)?,
            None => driver.launch(self.stream, self.kernel, self.rows, &self.blocks)?,
        }
        driver.record(end, self.stream)
    }
}

/// Executes that number of batches.
pub(super) fn run<R: Rig>(
    rig: &mut R,
    batches: u32,
    plan: Plan,
    subject: &Subject<'_, <R::Driver as Driver>::Graph>,
) -> Result<Bare, GpuBenchError> {
    let mut driver = rig.driver()?;
    let (inputs, copies) = Inputs::bring(rig, &mut driver, plan, subject)?;
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
            inputs.launch(&mut driver, span)?;
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
