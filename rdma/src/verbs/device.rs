//! An RDMA device: found, opened, its limits read, its port and GID chosen and proved.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use baton_topo::VerbsConfig;
use baton_topo::machine::gid::{Gid, GidKind, ranked};

use super::error::VerbsError;
use super::ffi::{self, AhAttr, Context, DeviceAttr, GidEntry, GlobalRoute, Library, PortAttr};
use super::memory::ProtectionDomain;

/// Hops a packet may take: RoCE v2 is routed.
const HOP_LIMIT: u8 = 64;
/// `ENOSYS`: what the library says where the kernel has no RDMA.
const ENOSYS: i32 = 38;

/// What a device and its port can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Queue pairs.
    pub(crate) queue_pairs: u32,
    /// Work requests in a queue.
    pub(crate) requests: u32,
    /// Completions in a queue.
    pub(crate) completions: u32,
    /// Pieces a READ may be scattered over.
    pub(crate) read_pieces: u32,
    /// READs one queue pair may have under way.
    pub(crate) initiator_depth: u32,
    /// READs one queue pair may be answering.
    pub(crate) responder_depth: u32,
    /// READs all queue pairs together may be answering.
    pub(crate) responder_budget: u32,
    /// Receives in a shared queue.
    pub(crate) shared_receives: u32,
    /// Largest packet, as verbs number it: 1 is 256 bytes, 5 is 4096.
    pub(crate) mtu: u8,
    /// The port's address on InfiniBand; 0 on Ethernet.
    pub(crate) lid: u16,
    /// True if the port is Ethernet: peers are reached by GID.
    pub(crate) ethernet: bool,
}

/// An open device.
pub(crate) struct Device {
    pub(super) library: Arc<Library>,
    pub(super) context: NonNull<Context>,
    name: String,
    port: u8,
    limits: Limits,
}

// SAFETY: libibverbs allows every call on a context from any thread.
unsafe impl Send for Device {}
// SAFETY: as above; calls at the same time are allowed too.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device `config` names, or the first whose port is active.
    ///
    /// # Errors
    /// No library, no kernel support, no such device, port down, or too old a device.
    pub(crate) fn open(config: &VerbsConfig) -> Result<Arc<Self>, VerbsError> {
        let library = Arc::new(Library::load()?);
        // SAFETY: no preconditions; a failure only means that a child after fork() must not touch
        // registered memory, which ours never does.
        let _ = unsafe { (library.fork_init)() };
        let list = DeviceList::get(&library)?;
        let wanted = config.device.as_deref();
        let found: Vec<_> =
            list.names.iter().filter(|(name, _)| wanted.is_none_or(|want| want == name)).collect();
        if let (Some(name), true) = (wanted, found.is_empty()) {
            let known: Vec<&str> = list.names.iter().map(|(name, _)| name.as_str()).collect();
            return Err(VerbsError::UnknownDevice { name: name.into(), known: known.join(", ") });
        }
        let mut first_problem = None;
        for (name, device) in found {
            match Self::open_one(&library, name, *device, config.port) {
                Ok(device) => return Ok(Arc::new(device)),
                Err(problem) => {
                    first_problem.get_or_insert(problem);
                }
            }
        }
        Err(first_problem.unwrap_or(VerbsError::NoDevice))
    }

    fn open_one(
        library: &Arc<Library>,
        name: &str,
        device: NonNull<ffi::Device>,
        port: u8,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the device is of a list that is still held.
        let context = unsafe { (library.open_device)(device.as_ptr()) };
        let context = NonNull::new(context).ok_or_else(|| refused("opening it", name))?;
        let limits = Limits {
            queue_pairs: 0,
            requests: 0,
            completions: 0,
            read_pieces: 0,
            initiator_depth: 0,
            responder_depth: 0,
            responder_budget: 0,
            shared_receives: 0,
            mtu: 0,
            lid: 0,
            ethernet: false,
        };
        let library = Arc::clone(library);
        // From here on dropping it closes the context.
        let mut opened = Self { library, context, name: name.to_owned(), port, limits };
        opened.limits = opened.read_limits()?;
        if opened.limits.read_pieces < 2 {
            let max_sge_rd = opened.limits.read_pieces;
            return Err(VerbsError::FewPieces { device: opened.name.clone(), max_sge_rd });
        }
        Ok(opened)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The port in use.
    pub(crate) fn port(&self) -> u8 {
        self.port
    }

    /// What it can do.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The error of a call that has just failed.
    pub(crate) fn refused(&self, what: &'static str) -> VerbsError {
        refused(what, &self.name)
    }

    /// The GID to speak from: the one asked for, or the best that an address handle can be made of.
    ///
    /// # Errors
    /// None can be used.
    pub(crate) fn choose_gid(
        self: &Arc<Self>,
        pd: &ProtectionDomain,
        config: &VerbsConfig,
    ) -> Result<Gid, VerbsError> {
        if let Some(index) = config.gid_index {
            let bad =
                |problem: String| VerbsError::BadGid { device: self.name.clone(), index, problem };
            let gid = self.gid(index).ok_or_else(|| bad("there is no such entry".into()))?;
            self.prove(pd, &gid, config).map_err(|error| bad(error.to_string()))?;
            return Ok(gid);
        }
        let mut tried = String::new();
        for gid in ranked((0..self.gid_table_len()?).filter_map(|index| self.gid(index)).collect())
        {
            match self.prove(pd, &gid, config) {
                Ok(()) => return Ok(gid),
                Err(error) => tried.push_str(&format!("; {gid}: {error}")),
            }
        }
        Err(VerbsError::NoGid { device: self.name.clone(), port: self.port, tried })
    }

    /// A path to `remote` from the GID in `index`.
    pub(crate) fn path(&self, remote: [u8; 16], lid: u16, index: u32, cfg: &VerbsConfig) -> AhAttr {
        AhAttr {
            grh: GlobalRoute {
                dgid: remote,
                flow_label: 0,
                sgid_index: index as u8,
                hop_limit: HOP_LIMIT,
                traffic_class: cfg.traffic_class,
            },
            dlid: lid,
            sl: cfg.service_level,
            is_global: u8::from(self.limits.ethernet),
            port_num: self.port,
            ..AhAttr::default()
        }
    }

    /// An address handle to oneself exists only if the kernel finds the entry usable.
    fn prove(&self, pd: &ProtectionDomain, gid: &Gid, cfg: &VerbsConfig) -> io::Result<()> {
        let mut path = self.path(gid.raw, self.limits.lid, gid.index, cfg);
        // SAFETY: the protection domain lives, and `path` is a complete description.
        let handle = unsafe { (self.library.create_ah)(pd.pd.as_ptr(), &raw mut path) };
        let handle = NonNull::new(handle).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: made above; nothing else uses it.
        let _ = unsafe { (self.library.destroy_ah)(handle.as_ptr()) };
        Ok(())
    }

    fn gid(&self, index: u32) -> Option<Gid> {
        let mut entry = GidEntry::default();
        let (context, port) = (self.context.as_ptr(), u32::from(self.port));
        // SAFETY: the context is open and `entry` has the size that the call names.
        let failed = unsafe {
            (self.library.query_gid)(context, port, index, &raw mut entry, 0, size_of::<GidEntry>())
        };
        let kind = GidKind::from_code(entry.gid_type)?;
        // On Ethernet an entry without an interface of ours is a leftover.
        let local = !self.limits.ethernet || entry.ndev_ifindex != 0;
        (failed == 0 && local && index <= u32::from(u8::MAX)).then_some(Gid {
            index,
            kind,
            raw: entry.gid,
        })
    }

    fn gid_table_len(&self) -> Result<u32, VerbsError> {
        Ok(self.query_port()?.gid_tbl_len.max(0) as u32)
    }

    fn query_port(&self) -> Result<PortAttr, VerbsError> {
        let mut attr = PortAttr::default();
        // SAFETY: the context is open, and this symbol fills in no more than this struct.
        let failed =
            unsafe { (self.library.query_port)(self.context.as_ptr(), self.port, &raw mut attr) };
        if failed == 0 { Ok(attr) } else { Err(self.failed("querying its port", failed)) }
    }

    fn read_limits(&self) -> Result<Limits, VerbsError> {
        // SAFETY: the struct is plain numbers, for which zero is a value.
        let mut attr: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and `attr` has the layout the function fills in.
        let failed = unsafe { (self.library.query_device)(self.context.as_ptr(), &raw mut attr) };
        if failed != 0 {
            return Err(self.failed("querying it", failed));
        }
        let port = self.query_port()?;
        if port.state != ffi::PORT_ACTIVE {
            return Err(VerbsError::PortDown { device: self.name.clone(), port: self.port });
        }
        let count = |n: i32| n.max(0) as u32;
        Ok(Limits {
            queue_pairs: count(attr.max_qp),
            requests: count(attr.max_qp_wr),
            completions: count(attr.max_cqe),
            // Drivers that leave the READ limit out have one for everything.
            read_pieces: count(if attr.max_sge_rd > 0 { attr.max_sge_rd } else { attr.max_sge }),
            initiator_depth: count(attr.max_qp_init_rd_atom),
            responder_depth: count(attr.max_qp_rd_atom),
            responder_budget: count(attr.max_res_rd_atom),
            shared_receives: count(attr.max_srq_wr),
            mtu: port.active_mtu.min(5) as u8,
            lid: port.lid,
            ethernet: port.link_layer == ffi::LINK_ETHERNET,
        })
    }

    /// For calls that return their error.
    pub(super) fn failed(&self, what: &'static str, errno: i32) -> VerbsError {
        let source = io::Error::from_raw_os_error(errno.abs());
        VerbsError::Refused { what, device: self.name.clone(), source }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened by us; everything made of it holds a reference, so nothing is left.
        let _ = unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

fn refused(what: &'static str, device: &str) -> VerbsError {
    VerbsError::Refused { what, device: device.to_owned(), source: io::Error::last_os_error() }
}

/// The host's devices, held while one is opened.
struct DeviceList<'a> {
    library: &'a Library,
    list: NonNull<*mut ffi::Device>,
    names: Vec<(String, NonNull<ffi::Device>)>,
}

impl<'a> DeviceList<'a> {
    fn get(library: &'a Library) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: `count` is written; the list is given back in `drop`.
        let list = unsafe { (library.get_device_list)(&raw mut count) };
        let Some(list) = NonNull::new(list) else {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(ENOSYS) => VerbsError::NoKernelSupport,
                _ => VerbsError::Refused { what: "listing", device: "devices".into(), source },
            });
        };
        let mut devices = Self { library, list, names: Vec::new() };
        for at in 0..count.max(0) as usize {
            // SAFETY: `at` is below the list's length.
            let entry = unsafe { list.add(at) };
            // SAFETY: in bounds, and the library filled it in.
            let Some(device) = NonNull::new(unsafe { entry.read() }) else { continue };
            devices.names.push((devices.name_of(device), device));
        }
        if devices.names.is_empty() { Err(VerbsError::NoDevice) } else { Ok(devices) }
    }

    fn name_of(&self, device: NonNull<ffi::Device>) -> String {
        // SAFETY: a device of the list that is held.
        let name = unsafe { (self.library.get_device_name)(device.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: a C string inside the device, which is held.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: got from the library, given back once; an opened device does not need it.
        unsafe { (self.library.free_device_list)(self.list.as_ptr()) }
    }
}
