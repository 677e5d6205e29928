//! Where the pipeline and the bare loop run: a driver and a clock.

use std::path::Path;
use std::sync::Arc;

use baton_core::Nanos;
use baton_cuda::{Driver, Gpu, Library, OpenError};
use baton_cuda_sim::SimDriver;
use baton_topo::Clock;

use super::{Figures, GpuBenchError, ROW_BYTES};

/// How often the simulated host looks: what a thread that spins takes for it.
const LOOK_NS: u64 = 1_000;

/// A device and a host.
pub trait Rig {
    /// What drives it.
    type Driver: Driver;

    /// A driver of its own for each part of the bench.
    ///
    /// # Errors
    /// There is no such device.
    fn driver(&mut self) -> Result<Self::Driver, GpuBenchError>;

    /// The host's clock.
    fn now(&self) -> Nanos;

    /// Nothing has ended: the host looks again at once.
    fn spin(&mut self);

    /// What the device is called.
    fn device(&self) -> String;

    /// What its times are worth.
    fn figures(&self) -> Figures;

    /// The right answer to a row of zeros.
    fn answer(&self) -> [u8; 8];
}

/// A device behind a library, which may be the fake one.
#[derive(Debug)]
pub struct LibraryRig {
    library: Arc<Library>,
    number: u32,
    clock: Clock,
}

impl LibraryRig {
    /// The device with this number; `path` names another library than this process's.
    ///
    /// # Errors
    /// There is no driver.
    pub fn open(path: Option<&Path>, number: u32, clock: Clock) -> Result<Self, OpenError> {
        let library = match path {
            Some(path) => Arc::new(Library::open_at(path)?),
            None => Library::open()?,
        };
        Ok(Self { library, number, clock })
    }
}

impl Rig for LibraryRig {
    type Driver = Gpu;

    fn driver(&mut self) -> Result<Gpu, GpuBenchError> {
        Ok(Gpu::open(Arc::clone(&self.library), self.number)?)
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn spin(&mut self) {
        std::hint::spin_loop();
    }

    fn device(&self) -> String {
        let devices = self.library.devices().unwrap_or_default();
        let name = devices.get(self.number as usize).map_or("?", |device| device.name.as_str());
        format!("cuda:{}: {name}", self.number)
    }

    fn figures(&self) -> Figures {
        if self.library.is_fake() { Figures::Fake } else { Figures::Device }
    }

    fn answer(&self) -> [u8; 8] {
        u64::from(crc32fast::hash(&[0; ROW_BYTES as usize])).to_le_bytes()
    }
}

/// The simulated device.
#[derive(Default, Debug)]
pub struct SimRig {
    driver: SimDriver,
}

impl Rig for SimRig {
    type Driver = SimDriver;

    fn driver(&mut self) -> Result<SimDriver, GpuBenchError> {
        // Time goes on where it was: a driver of its own has a world of its own.
        let now = self.driver.look().now;
        self.driver = SimDriver::default();
        self.driver.world().now = now;
        Ok(self.driver.clone())
    }

    fn now(&self) -> Nanos {
        Nanos(self.driver.look().now)
    }

    fn spin(&mut self) {
        self.driver.world().advance(LOOK_NS);
    }

    fn device(&self) -> String {
        "simulated".into()
    }

    fn figures(&self) -> Figures {
        Figures::Virtual
    }

    /// It answers with the beginning of the rows.
    fn answer(&self) -> [u8; 8] {
        [0; 8]
    }
}
