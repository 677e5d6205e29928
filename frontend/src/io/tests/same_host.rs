//! A backend on the client's host, over real sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::yield_now;

use baton_rdma::wire::{CatalogEnd, Hello, JoinAck, Message, Role, ThreadDesc, WireAddr};
use baton_rdma::{ConnId, Event, Events, Identity, MixedTransport, TcpConfig, Transport};
use baton_topo::{Agent, Clock, TransportChoice, VerbsConfig};
use baton_types::Nanos;

use super::world::*;
use crate::config::ClientConfig;
use crate::io::ClientIo;

const PATIENCE: Nanos = Nanos::from_millis(30_000);

fn bind(role: Role) -> MixedTransport {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = Identity { role, member: 0 };
    let verbs = VerbsConfig { device: Some("no-such-device".into()), ..VerbsConfig::default() };
    let (tcp, choice) = (TcpConfig::default(), TransportChoice::Auto);
    MixedTransport::bind(Some(any), identity, tcp, choice, &verbs, None, Clock::start()).unwrap()
}

/// A scheduler with one model, and a backend that it sends to the client before it lets the client in.
struct Host {
    control: MixedTransport,
    backend: MixedTransport,
    client: Option<ConnId>,
}

impl Host {
    fn pass(&mut self, now: Nanos) {
        let mut events = Events::new();
        self.control.poll(now, &mut events);
        for event in events.drain() {
            match event {
                Event::Opened { conn, .. } => self.announce(conn),
                Event::Message { message: Message::JoinFrontend(join), .. } => {
                    let addr = join.addr.resolve(Ipv4Addr::LOCALHOST.into());
                    self.backend.connect(addr, Hello::new(Role::Backend, 1, TOKEN)).unwrap();
                }
                _ => {}
            }
        }
        self.backend.poll(now, &mut events);
        let is_connected = events.drain().any(|event| matches!(event, Event::Opened { .. }));
        if let Some(conn) = self.client.take_if(|_| is_connected) {
            let ack = JoinAck { member: 3.into(), first_gpu: 0.into(), token: TOKEN.into() };
            self.control.send(conn, &ack, &[]).unwrap();
        }
        self.control.flush();
    }

    fn announce(&mut self, conn: ConnId) {
        self.client = Some(conn);
        let addr = WireAddr::new(self.control.local_addr());
        self.control.send(conn, &ThreadDesc { thread: 0.into(), addr }, &[]).unwrap();
        self.control.send(conn, &model_desc(0), b"alpha").unwrap();
        self.control.send(conn, &CatalogEnd { scheduler_epoch: 1.into() }, &[]).unwrap();
    }
}

#[test]
fn a_backend_that_was_quicker_than_the_join_ack_is_given_memory() {
    let [control, backend, transport] = [Role::Control, Role::Backend, Role::Frontend].map(bind);
    let (config, clock) = (ClientConfig::new(control.local_addr()), Clock::start());
    let mut host = Host { control, backend, client: None };
    let (mut io, _joining) = ClientIo::new(config, transport, clock).unwrap();
    while io.transport.counters().links_same_host == 0 {
        io.poll(clock.now());
        host.pass(clock.now());
        assert!(!io.finished() && clock.now() < PATIENCE, "in vain");
        yield_now();
    }
}
