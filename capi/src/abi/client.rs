//! A connection: made, asked for its models, ended.

use std::net::SocketAddr;
use std::time::Duration;

use baton_client::{Client, ClientConfig, EtcdSpec, FabricSpec, SchedulerLocator, TlsSpec};

use super::pointers::{InStruct, Out, Str, optional, texts};
use super::structs::{ClientHandle, Config};
use super::{fork, model};
use crate::handles::Table;
use crate::status::{E_CONNECT, E_LEAVE, OK, Refusal, Result, call};

pub(super) static CLIENTS: Table<Client> = Table::new(1, "client");

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_connect(config: InStruct<Config>, client: Out<ClientHandle>) -> i32 {
    call(|| {
        let (config, out) = (settings(&config.given()?)?, client.given("client")?);
        fork::watch();
        let client = Client::connect(config).map_err(|error| Refusal::new(E_CONNECT, error))?;
        out.put(ClientHandle { id: CLIENTS.insert(client)? });
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_leave(client: ClientHandle) -> i32 {
    call(|| {
        let client = CLIENTS.remove(client.id)?;
        client.leave().map_err(|error| Refusal::new(E_LEAVE, error))?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_free(client: ClientHandle) -> i32 {
    call(|| CLIENTS.remove(client.id).map(|_client| OK))
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_model_count(client: ClientHandle, count: Out<usize>) -> i32 {
    call(|| {
        let count = count.given("count")?;
        count.put(CLIENTS.get(client.id)?.models().len());
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_now(client: ClientHandle, now_ns: Out<u64>) -> i32 {
    call(|| {
        let now_ns = now_ns.given("now_ns")?;
        now_ns.put(CLIENTS.get(client.id)?.now().0);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_slots_in_use(client: ClientHandle, slots: Out<u32>) -> i32 {
    call(|| {
        let slots = slots.given("slots")?;
        slots.put(CLIENTS.get(client.id)?.slots_in_use());
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_counter(client: ClientHandle, name: Str, value: Out<u64>) -> i32 {
    call(|| {
        let (name, value) = (name.given("name")?, value.given("value")?);
        let pairs = CLIENTS.get(client.id)?.counters().pairs();
        let found = pairs.iter().find(|(known, _)| *known == name).map(|pair| pair.1);
        value.put(found.ok_or_else(|| {
            let known: Vec<&str> = pairs.iter().map(|pair| pair.0).collect();
            Refusal::argument(format!(
                "no counter is called {name:?}; there are {}",
                known.join(", ")
            ))
        })?);
        Ok(OK)
    })
}

/// The settings that a program gave; zeros and nulls are the defaults.
fn settings(config: &Config) -> Result<ClientConfig> {
    let mut settings = ClientConfig::with_locator(locator(config)?);
    let models = texts(config.models, config.model_count, "config.models")?;
    if !models.is_empty() {
        settings = settings.models(models);
    }
    if config.slots_per_model > 0 {
        settings = settings.slots_per_model(config.slots_per_model);
    }
    if let Some(listen) = optional(config.listen, "config.listen")? {
        settings = settings.listen(address(&listen, "config.listen")?);
    }
    if let Some(tls) = tls(config)? {
        settings = settings.fabric(FabricSpec { tls: Some(tls), ..FabricSpec::default() });
    }
    let spans = [
        (config.connect_timeout_ns, ClientConfig::connect_timeout as fn(_, _) -> _),
        (config.lease_grace_ns, ClientConfig::lease_grace),
        (config.leave_timeout_ns, ClientConfig::leave_timeout),
    ];
    let given = spans.into_iter().filter(|(span_ns, _)| *span_ns > 0);
    Ok(given.fold(settings, |settings, (ns, set)| set(settings, Duration::from_nanos(ns))))
}

fn locator(config: &Config) -> Result<SchedulerLocator> {
    let scheduler = optional(config.scheduler, "config.scheduler")?;
    let etcd = optional(config.etcd, "config.etcd")?;
    match (scheduler, etcd) {
        (Some(scheduler), None) => Ok(address(&scheduler, "config.scheduler")?.into()),
        (None, Some(endpoints)) => {
            let prefix = optional(config.etcd_prefix, "config.etcd_prefix")?;
            let spec = EtcdSpec {
                endpoints: endpoints.split(',').map(str::to_owned).collect(),
                prefix: prefix.ok_or_else(|| Refusal::argument(PREFIX))?,
                lease_ttl_s: if config.etcd_lease_ttl_s > 0 { config.etcd_lease_ttl_s } else { 2 },
                tls: None,
            };
            SchedulerLocator::via_etcd(&spec).map_err(Refusal::argument)
        }
        (None, None) => Err(Refusal::argument(NO_SCHEDULER)),
        (Some(_), Some(_)) => Err(Refusal::argument(BOTH)),
    }
}

const PREFIX: &str = "config.etcd_prefix is NULL: give `etcd.prefix` of the cluster file";
const NO_SCHEDULER: &str =
    "neither config.scheduler nor config.etcd is set: give the scheduler's address";
const BOTH: &str = "config.scheduler and config.etcd are both set: give one of them";

fn tls(config: &Config) -> Result<Option<TlsSpec>> {
    let ca = optional(config.tls_ca, "config.tls_ca")?;
    let cert = optional(config.tls_cert, "config.tls_cert")?;
    let key = optional(config.tls_key, "config.tls_key")?;
    match (ca, cert, key) {
        (None, None, None) => Ok(None),
        (Some(ca), Some(cert), Some(key)) => Ok(Some(TlsSpec {
            ca: ca.into(),
            cert: cert.into(),
            key: key.into(),
            schedulers: None,
            backends: None,
            frontends: None,
            operators: None,
        })),
        _ => Err(Refusal::argument("give all of tls_ca, tls_cert and tls_key, or none")),
    }
}

fn address(text: &str, argument: &str) -> Result<SocketAddr> {
    let wrong = |_| {
        Refusal::argument(format!("{argument} is {text:?}: give IP:PORT, such as 127.0.0.1:7700"))
    };
    text.parse().map_err(wrong)
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_model(
    client: ClientHandle,
    name: Str,
    model: Out<super::ModelHandle>,
) -> i32 {
    call(|| {
        let (name, out) = (name.given("name")?, model.given("model")?);
        out.put(model::insert(CLIENTS.get(client.id)?.model(&name)?)?);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_client_model_at(
    client: ClientHandle,
    index: usize,
    model: Out<super::ModelHandle>,
) -> i32 {
    call(|| {
        let out = model.given("model")?;
        let models = CLIENTS.get(client.id)?.models();
        let count = models.len();
        let found = models.into_iter().nth(index);
        let found = found.ok_or_else(|| {
            Refusal::argument(format!("index is {index}, and this client has {count} models"))
        })?;
        out.put(model::insert(found)?);
        Ok(OK)
    })
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    const NOTHING: Config = Config {
        struct_size: 0,
        slots_per_model: 0,
        scheduler: c"127.0.0.1:7700".as_ptr(),
        etcd: ptr::null(),
        etcd_prefix: ptr::null(),
        models: ptr::null(),
        model_count: 0,
        listen: ptr::null(),
        tls_ca: ptr::null(),
        tls_cert: ptr::null(),
        tls_key: ptr::null(),
        etcd_lease_ttl_s: 0,
        reserved: 0,
        connect_timeout_ns: 0,
        lease_grace_ns: 0,
        leave_timeout_ns: 0,
    };

    #[test]
    fn a_leader_is_found_by_etcd_whose_lease_may_be_given() {
        let config = |prefix, etcd_lease_ttl_s| Config {
            scheduler: ptr::null(),
            etcd: c"http://127.0.0.1:1,http://127.0.0.1:2".as_ptr(),
            etcd_prefix: prefix,
            etcd_lease_ttl_s,
            ..NOTHING
        };
        let lease_ms = |ttl_s| {
            let locator = locator(&config(c"/baton/x".as_ptr(), ttl_s)).unwrap();
            locator.succession().as_millis_f64()
        };
        assert_eq!([0, 1, 7].map(lease_ms), [2_000.0, 1_000.0, 7_000.0]);
        let refused = |config: &Config| locator(config).unwrap_err().words;
        assert_eq!(refused(&config(ptr::null(), 0)), PREFIX);
        let both = Config { scheduler: NOTHING.scheduler, ..config(c"/x".as_ptr(), 0) };
        assert_eq!(refused(&both), BOTH);
        assert_eq!(refused(&Config { scheduler: ptr::null(), ..NOTHING }), NO_SCHEDULER);
    }

    #[test]
    fn each_setting_is_its_own_and_zero_leaves_what_is_usual() {
        let usual = || ClientConfig::new(([127, 0, 0, 1], 7700).into());
        let ns = Duration::from_nanos;
        let models = [c"a".as_ptr(), c"b".as_ptr()];
        let named = Config { models: models.as_ptr(), model_count: 2, ..NOTHING };
        let listen = Config { listen: c"127.0.0.2:7".as_ptr(), ..NOTHING };
        let cases = [
            (NOTHING, usual()),
            (Config { slots_per_model: 3, ..NOTHING }, usual().slots_per_model(3)),
            (named, usual().models(["a", "b"])),
            (listen, usual().listen(([127, 0, 0, 2], 7).into())),
            (Config { connect_timeout_ns: 5, ..NOTHING }, usual().connect_timeout(ns(5))),
            (Config { lease_grace_ns: 6, ..NOTHING }, usual().lease_grace(ns(6))),
            (Config { leave_timeout_ns: 7, ..NOTHING }, usual().leave_timeout(ns(7))),
        ];
        for (given, expected) in cases {
            assert_eq!(format!("{:?}", settings(&given).unwrap()), format!("{expected:?}"));
        }
    }
}
