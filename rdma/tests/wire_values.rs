//! What fields of messages stand for, at the ends of their ranges.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use baton_rdma::wire::{WireAddr, WireFetch};
use baton_types::Nanos;

#[test]
fn a_fetch_is_measured_if_it_says_how_long_it_took_and_when_it_was_over() {
    let measured = |took, at| WireFetch::new(Nanos(took), Nanos(at)).measured();
    assert_eq!(measured(3, 9), Some((Nanos(3), Nanos(9))));
    assert_eq!([measured(0, 9), measured(3, 0), WireFetch::NOT_MEASURED.measured()], [None; 3]);
}

#[test]
fn a_fetch_that_took_longer_than_fits_took_as_long_as_fits() {
    let most = u64::from(u32::MAX);
    for took in [most, most + 1, 2 * most + 2] {
        let measured = WireFetch::new(Nanos(took), Nanos(9)).measured();
        assert_eq!(measured, Some((Nanos(most), Nanos(9))), "{took}");
    }
}

/// Also one of the older kind, which travels as one of the newer.
#[test]
fn an_address_that_names_no_host_is_the_one_that_was_seen() {
    let seen = IpAddr::from([10, 0, 0, 7]);
    let resolved = |ip: IpAddr| WireAddr::new(SocketAddr::new(ip, 70)).resolve(seen);
    for none in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
        assert_eq!(resolved(none), SocketAddr::new(seen, 70), "{none}");
    }
    for ip in [IpAddr::from([10, 0, 0, 8]), Ipv6Addr::LOCALHOST.into()] {
        assert_eq!(resolved(ip), SocketAddr::new(ip, 70));
    }
}
