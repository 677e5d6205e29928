//! A cluster file as it was understood, as text.

use std::fmt;

use baton_types::{Profile, SubclusterId};

use crate::cluster_file::cluster::{BackendSpec, Cluster, EngineSpec, ModelSpec};
use crate::cluster_file::device::Device;
use crate::cluster_file::gateway::{GatewaySpec, TokenSpec};
use crate::cluster_file::variants::per_cent;

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheduler = &self.scheduler;
        let policy = scheduler.policy.name();
        let (listen, threads) = (scheduler.listen, scheduler.model_threads);
        let prefer = scheduler.prefer.name();
        writeln!(
            f,
            "scheduler at {listen}: policy {policy}, prefer {prefer}, {threads} ModelThread(s)"
        )?;
        if let Some(etcd) = &scheduler.etcd {
            let (endpoints, ttl_s) = (etcd.endpoints.join(", "), etcd.lease_ttl_s);
            writeln!(f, "leader by etcd at {endpoints}, under {}; lease {ttl_s} s", etcd.prefix)?;
            if let Some(tls) = &etcd.tls {
                write!(f, "etcd over TLS, by the authorities in {}", tls.ca.display())?;
                match &tls.identity {
                    Some(own) => writeln!(f, ", as {}", own.cert.display())?,
                    None => writeln!(f, ", without a certificate of its own")?,
                }
            }
        }
        writeln!(
            f,
            "planned delays: {} ms per plan, {} ms per input, {} ms per answer; jitter {} ms",
            self.network.ctrl.as_millis_f64(),
            self.network.data_per_task.as_millis_f64(),
            self.network.response.as_millis_f64(),
            self.network.jitter.as_millis_f64()
        )?;
        writeln!(f, "inputs over: {}", self.fabric.transport)?;
        match &self.fabric.tls {
            Some(tls) => writeln!(f, "connections: TLS, as {}", tls.cert.display())?,
            None => writeln!(f, "connections: not encrypted, peers not authenticated")?,
        }
        writeln!(f, "frontends: {} slots per model", self.frontend.slots_per_model)?;
        write_gateway(f, &self.gateway)?;
        write_metrics(f, self)?;
        for (index, name) in self.subclusters.iter().enumerate() {
            write_subcluster(f, self, SubclusterId(index as u32), name)?;
        }
        Ok(())
    }
}

/// Nothing without the table.
fn write_gateway(f: &mut fmt::Formatter<'_>, gateway: &GatewaySpec) -> fmt::Result {
    let mut parts = Vec::new();
    parts.extend(gateway.tls.as_ref().map(|tls| format!("TLS, as {}", tls.cert.display())));
    let token = |token: &TokenSpec| {
        let limit = token.max_rps.map(|rps| format!(" ({rps} tasks/s)")).unwrap_or_default();
        format!("{}{limit}", token.name)
    };
    let tokens: Vec<String> = gateway.tokens.iter().map(token).collect();
    let images: Vec<&str> = gateway.images.iter().map(|image| &*image.model).collect();
    parts.extend((!tokens.is_empty()).then(|| format!("tokens of {}", tokens.join(", "))));
    parts.extend((!images.is_empty()).then(|| format!("images for {}", images.join(", "))));
    parts.extend(gateway.shared_memory_mib.map(|mib| format!("{mib} MiB of shared memory")));
    if parts.is_empty() { Ok(()) } else { writeln!(f, "gateways: {}", parts.join("; ")) }
}

/// Nothing without an address.
fn write_metrics(f: &mut fmt::Formatter<'_>, cluster: &Cluster) -> fmt::Result {
    let scheduler = cluster.scheduler.metrics.map(|addr| format!("scheduler at {addr}"));
    let of_backend = |b: &BackendSpec| Some(format!("{} at {}", b.name, b.metrics?));
    let backends = cluster.backends.iter().filter_map(of_backend);
    let all: Vec<String> = scheduler.into_iter().chain(backends).collect();
    if all.is_empty() { Ok(()) } else { writeln!(f, "metrics: {}", all.join(", ")) }
}

fn write_subcluster(
    f: &mut fmt::Formatter<'_>,
    cluster: &Cluster,
    id: SubclusterId,
    name: &str,
) -> fmt::Result {
    let backends = || cluster.backends.iter().filter(|backend| backend.subcluster == id);
    let gpus: u32 = backends().map(|backend| backend.gpus).sum();
    let list: Vec<String> = backends().map(|b| format!("{} ({})", b.name, b.gpus)).collect();
    let list = if list.is_empty() { "no backend yet".to_owned() } else { list.join(", ") };
    writeln!(f, "sub-cluster {name}: {gpus} GPU slots: {list}")?;
    for backend in backends() {
        if let Some(bytes) = backend.model_memory {
            let (name, mib) = (&backend.name, bytes >> 20);
            writeln!(f, "  models on each GPU slot of {name}: {mib} MiB at most")?;
        }
    }
    for model in cluster.models.iter().filter(|model| model.subcluster == id) {
        write_model(f, model)?;
    }
    Ok(())
}

fn write_model(f: &mut fmt::Formatter<'_>, model: &ModelSpec) -> fmt::Result {
    let engine = match &model.engine {
        EngineSpec::Onnx { file, place, .. } if place.device != Device::Cpu => {
            format!("onnx {} on {}", file.display(), place.device)
        }
        EngineSpec::Onnx { file, .. } => format!("onnx {}", file.display()),
        other => other.name().to_owned(),
    };
    let engine = match model.files().len() {
        0 | 1 => engine,
        files => format!("onnx, {files} files"),
    };
    let (name, slo) = (&model.name, model.slo.as_millis_f64());
    write!(f, "  model {name} ({engine}): SLO {slo} ms, ")?;
    write_profile(f, model)?;
    match &model.engine {
        EngineSpec::Emulated { .. } | EngineSpec::Cuda => {
            write!(f, ", {} → {} bytes", model.input_bytes, model.output_bytes)?;
        }
        EngineSpec::Onnx { signature, layout, .. } => {
            write!(f, ", {} → {}", signature.input, signature.output)?;
            layout.in_words().iter().try_for_each(|words| write!(f, "; {words}"))?;
        }
    }
    if let Some(limit) = model.quota.model {
        write!(f, ", at most {}/s", limit.rps())?;
    }
    if let Some(limit) = model.quota.frontend {
        write!(f, ", at most {}/s of each frontend", limit.rps())?;
    }
    writeln!(f)?;
    for variant in &model.variants {
        let (name, accuracy) = (&variant.name, per_cent(variant.accuracy));
        write!(f, "    variant {name}: {accuracy} %, ")?;
        write_latencies(f, model, &variant.profile)?;
        writeln!(f)?;
    }
    Ok(())
}

fn write_profile(f: &mut fmt::Formatter<'_>, model: &ModelSpec) -> fmt::Result {
    match model.variants.len() {
        0 => write_latencies(f, model, &model.profile),
        variants => {
            write!(f, "{variants} variant(s), batches of up to {}", model.profile.batch_max())
        }
    }
}

fn write_latencies(
    f: &mut fmt::Formatter<'_>,
    model: &ModelSpec,
    profile: &Profile,
) -> fmt::Result {
    let batch_max = profile.batch_max();
    let is_measured = model.engine.is_measured();
    let latency = |f: &mut fmt::Formatter<'_>, batch| match is_measured {
        true => write!(f, "ℓ({batch})"),
        false => write!(f, "ℓ({batch}) = {} ms", profile.latency(batch).as_millis_f64()),
    };
    latency(f, 1)?;
    if batch_max > 1 {
        f.write_str(" … ")?;
        latency(f, batch_max)?;
    }
    f.write_str(if is_measured { " measured by its backends" } else { "" })
}
