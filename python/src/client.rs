//! A connection: made, asked for its models, ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use baton_client::{ClientConfig, EtcdSpec, FabricSpec, SchedulerLocator, TlsSpec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::{ConnectError, LeaveError, UnknownModelError};
use crate::fork::Local;
use crate::model::Model;
use crate::wait::{for_future, span};

/// A client that has joined a scheduler.
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Client {
    client: Local<baton_client::Client>,
}

/// Joins a scheduler. Blocks until then, `connect_timeout` seconds at most; Ctrl-C ends the wait.
#[pyfunction]
#[pyo3(signature = (
    scheduler = None, *, etcd = None, etcd_prefix = None, etcd_lease_ttl_s = 2, models = None, slots_per_model = None,
    listen = None, connect_timeout = None, lease_grace = None, leave_timeout = None, tls = None
))]
#[expect(clippy::too_many_arguments, reason = "they have names and defaults in Python")]
pub(crate) fn connect(
    py: Python<'_>,
    scheduler: Option<&str>,
    etcd: Option<Vec<String>>,
    etcd_prefix: Option<String>,
    etcd_lease_ttl_s: u32,
    models: Option<Vec<String>>,
    slots_per_model: Option<u32>,
    listen: Option<&str>,
    connect_timeout: Option<f64>,
    lease_grace: Option<f64>,
    leave_timeout: Option<f64>,
    tls: Option<(String, String, String)>,
) -> PyResult<Client> {
    let mut config = ClientConfig::with_locator(match (scheduler, etcd) {
        (Some(scheduler), None) => address(scheduler, "scheduler")?.into(),
        (None, Some(endpoints)) => via_etcd(endpoints, etcd_prefix, etcd_lease_ttl_s)?,
        _ => return Err(PyValueError::new_err(ONE_OF_BOTH)),
    });
    if let Some(models) = models {
        config = config.models(models);
    }
    if let Some(slots) = slots_per_model {
        config = config.slots_per_model(slots);
    }
    if let Some(listen) = listen {
        config = config.listen(address(listen, "listen")?);
    }
    if let Some((ca, cert, key)) = tls {
        config = config
            .fabric(FabricSpec { tls: Some(certificates(ca, cert, key)), ..FabricSpec::default() });
    }
    let spans = [
        (connect_timeout, "connect_timeout", ClientConfig::connect_timeout as fn(_, _) -> _),
        (lease_grace, "lease_grace", ClientConfig::lease_grace),
        (leave_timeout, "leave_timeout", ClientConfig::leave_timeout),
    ];
    for (seconds, argument, set) in spans {
        if let Some(seconds) = seconds {
            config = set(config, span(seconds, argument)?);
        }
    }
    // The connecting thread bounds itself.
    let connecting = Box::pin(baton_client::Client::connect_async(config));
    let connected = for_future(py, std::time::Duration::MAX, connecting)?;
    let connected =
        connected.ok_or_else(|| ConnectError::new_err("the scheduler did not answer"))?;
    let client = connected.map_err(|error| ConnectError::new_err(error.to_string()))?;
    Ok(Client { client: Local::new(client) })
}

const ONE_OF_BOTH: &str =
    "give the scheduler's address, or etcd=[endpoints] where it is found, and not both";

fn via_etcd(
    endpoints: Vec<String>,
    prefix: Option<String>,
    lease_ttl_s: u32,
) -> PyResult<SchedulerLocator> {
    let prefix = prefix.ok_or_else(|| {
        PyValueError::new_err("etcd_prefix is missing: give `etcd.prefix` of the cluster file")
    })?;
    let spec = EtcdSpec { endpoints, prefix, lease_ttl_s, tls: None };
    SchedulerLocator::via_etcd(&spec).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn certificates(ca: String, cert: String, key: String) -> TlsSpec {
    TlsSpec {
        ca: ca.into(),
        cert: cert.into(),
        key: key.into(),
        schedulers: None,
        backends: None,
        frontends: None,
        operators: None,
    }
}

fn address(text: &str, argument: &str) -> PyResult<SocketAddr> {
    text.parse().map_err(|_| {
        let words = format!("{argument} is {text:?}: give \"IP:PORT\", such as \"127.0.0.1:7700\"");
        PyValueError::new_err(words)
    })
}

#[pymethods]
impl Client {
    /// The model of this name.
    fn model(&self, name: &str) -> PyResult<Model> {
        let found = self.client.get()?.model(name);
        found.map(Model::new).map_err(|error| UnknownModelError::new_err(error.to_string()))
    }

    /// Every model, by name.
    fn models(&self) -> PyResult<Vec<Model>> {
        Ok(self.client.get()?.models().into_iter().map(Model::new).collect())
    }

    /// What the client has counted, by name.
    fn counters(&self) -> PyResult<BTreeMap<&'static str, u64>> {
        Ok(self.client.get()?.counters().pairs().into_iter().collect())
    }

    /// Slots that are not free: inputs, tasks, tickets and outcomes that hold theirs.
    #[getter]
    fn slots_in_use(&self) -> PyResult<u32> {
        Ok(self.client.get()?.slots_in_use())
    }

    /// Why the scheduler is lost, while it is.
    #[getter]
    fn loss(&self) -> PyResult<Option<String>> {
        Ok(self.client.get()?.loss().map(|loss| loss.to_string()))
    }

    /// Leaves in order: waits for outstanding tasks, and for the scheduler's confirmation. Without it the connection ends in the
    /// background once no object of this client is left.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let leaving = Box::pin(self.client.get()?.clone().leave_async());
        match for_future(py, std::time::Duration::MAX, leaving)? {
            Some(Err(error)) => Err(LeaveError::new_err(error.to_string())),
            Some(Ok(())) | None => Ok(()),
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.leave(py)
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._aio")?.call_method1("entered", (slf,))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        _exception: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::leave_async(slf)
    }

    /// As `leave`, awaited.
    fn leave_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._aio")?.call_method1("left", (slf,))
    }
}
