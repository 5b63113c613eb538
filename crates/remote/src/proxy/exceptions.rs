//! `NO_PROXY`: the servers that are asked without a proxy.
//!
//! Entries are separated by commas or spaces. An entry is `*`; a name, which fits that host and all below it, with or
//! without a dot or `*.` before it; an address; or a network such as `10.0.0.0/8`. A name or address may end with a port,
//! and fits only that port then. Networks and addresses fit hosts that are written as addresses: names are not resolved,
//! because behind a proxy they often cannot be. A malformed entry fits nothing.

use crate::Url;
use crate::headers::number;
use std::net::IpAddr;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    All,
    /// The bits of the prefix count.
    Network {
        address: IpAddr,
        prefix_bits: u32,
    },
    Address {
        address: IpAddr,
        port: Option<u64>,
    },
    /// In lower case, without a dot at its ends.
    Name {
        name: String,
        port: Option<u64>,
    },
}

/// All entries.
#[derive(Debug, Clone, Default)]
pub(super) struct Exceptions(Vec<Entry>);

impl Exceptions {
    /// Parses the value of the variable.
    pub(super) fn parse(text: &str) -> Self {
        let entries = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|text| !text.is_empty());
        Exceptions(entries.filter_map(Entry::parse).collect())
    }

    /// Whether the server of a URL is asked without a proxy.
    pub(super) fn has(&self, url: &Url) -> bool {
        let origin = url.origin();
        let Some((host, port)) = origin.split_once("://").and_then(|(_, host)| host.rsplit_once(':')) else {
            return false;
        };
        let (host, port) = (host.trim_end_matches('.'), number(port));
        let address =
            host.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|address| address.to_canonical());
        self.0.iter().any(|entry| entry.fits(host, address, port))
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Entry::All);
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address = parse_address(address)?;
            let prefix_bits = u32::try_from(number(bits)?).ok().filter(|bits| *bits <= width(address))?;
            return Some(Entry::Network { address, prefix_bits });
        }
        if let Some(address) = parse_address(text) {
            return Some(Entry::Address { address: address.to_canonical(), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(number(port).filter(|port| *port <= u64::from(u16::MAX))?)),
            None => (text, None),
        };
        if let Some(address) = parse_address(host) {
            return Some(Entry::Address { address: address.to_canonical(), port });
        }
        let name = host.strip_prefix('*').unwrap_or(host).trim_matches('.').to_ascii_lowercase();
        (!name.is_empty()).then_some(Entry::Name { name, port })
    }

    fn fits(&self, host: &str, found: Option<IpAddr>, found_port: Option<u64>) -> bool {
        let is_port = |port: &Option<u64>| port.is_none() || *port == found_port;
        match self {
            Entry::All => true,
            Entry::Network { address, prefix_bits } => {
                found.is_some_and(|found| is_in_network(found, *address, *prefix_bits))
            }
            Entry::Address { address, port } => found == Some(*address) && is_port(port),
            Entry::Name { name, port } => {
                let before = host.strip_suffix(name.as_str());
                let is_below = before.is_some_and(|before| before.is_empty() || before.ends_with('.'));
                found.is_none() && is_port(port) && is_below
            }
        }
    }
}

fn parse_address(text: &str) -> Option<IpAddr> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inside.unwrap_or(text).parse().ok()
}

/// The bits of an address.
fn width(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn is_in_network(found: IpAddr, network: IpAddr, prefix_bits: u32) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let rest_bits = width(network).saturating_sub(prefix_bits);
    // A shift by all 128 bits leaves nothing to compare.
    let prefix = |address| bits(address).checked_shr(rest_bits).unwrap_or(0);
    width(found) == width(network) && prefix(found) == prefix(network)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fits(entries: &str, url: &str) -> bool {
        Exceptions::parse(entries).has(&Url::parse(url).unwrap())
    }

    #[test]
    fn names_networks_and_ports_fit_or_do_not() {
        for (entries, url) in [
            ("*", "https://host/"),
            ("example.org", "https://example.org/"),
            ("example.org", "https://a.b.EXAMPLE.org/"),
            ("Example.ORG", "https://example.org:8443/"),
            (".example.org", "http://a.example.org/"),
            (".example.org", "http://example.org/"),
            ("*.example.org", "http://a.example.org/"),
            ("x, example.org", "http://example.org./"),
            ("x y\texample.org,", "http://example.org/"),
            ("example.org:80", "http://example.org/"),
            ("example.org:443", "https://example.org/"),
            ("10.0.0.5", "http://10.0.0.5:9000/"),
            ("10.0.0.5:9000", "http://10.0.0.5:9000/"),
            ("10.0.0.0/8", "http://10.255.1.2/"),
            ("10.1.2.3/8", "http://10.255.1.2/"),
            ("0.0.0.0/0", "http://192.0.2.1/"),
            ("::/0", "http://[2001:db8::1]/"),
            ("2001:db8::/32", "http://[2001:db8::1]:5000/"),
            ("2001:DB8::1", "http://[2001:db8:0::1]/"),
            ("[2001:db8::1]:5000", "http://[2001:db8::1]:5000/"),
            ("10.0.0.5/32", "http://10.0.0.5/"),
        ] {
            assert!(fits(entries, url), "{entries} {url}");
        }
        for (entries, url) in [
            ("", "http://example.org/"),
            ("xample.org", "http://example.org/"),
            ("a.example.org", "http://example.org/"),
            ("example.org:80", "https://example.org/"),
            ("example.org:x", "http://example.org/"),
            ("10.0.0.5:9000", "http://10.0.0.5/"),
            ("10.0.0.0/8", "http://11.0.0.1/"),
            ("10.0.0.0/8", "http://ten.example.org/"),
            ("10.0.0.0/33", "http://10.0.0.1/"),
            ("10.0.0.0/x", "http://10.0.0.1/"),
            ("0.0.0.0/0", "http://[2001:db8::1]/"),
            ("10.0.0.4/31", "http://10.0.0.6/"),
            ("0.0.5", "http://10.0.0.5/"),
            (".", "http://example.org/"),
        ] {
            assert!(!fits(entries, url), "{entries} {url}");
        }
    }

    proptest! {
        /// The slow twin: bit by bit.
        #[test]
        fn an_address_is_in_a_network_if_all_bits_of_the_prefix_are_equal(
            found in any::<[u8; 4]>(), network in any::<[u8; 4]>(), keep in 0..33_usize, prefix in 0..33_usize,
        ) {
            let bit = |bytes: &[u8; 4], n: usize| bytes[n / 8] >> (7 - n % 8) & 1;
            let mut near = network;
            (keep..32).for_each(|n| near[n / 8] = near[n / 8] & !(0x80 >> (n % 8)) | found[n / 8] & (0x80 >> (n % 8)));
            let is_in = (0..prefix).all(|n| bit(&near, n) == bit(&network, n));
            let [a, b, c, d] = near;
            let [e, f, g, h] = network;
            prop_assert_eq!(fits(&format!("{e}.{f}.{g}.{h}/{prefix}"), &format!("http://{a}.{b}.{c}.{d}/")), is_in);
        }

        #[test]
        fn any_text_is_parsed(text in "[a-z0-9.:/*,\\[\\] ]{0,40}", other in ".{0,30}") {
            let _ = fits(&text, "http://10.0.0.1:80/") | fits(&other, "https://[::2]/");
        }
    }
}
