//! Gives the kernel's NBD driver new connections in place of those that it has lost, for the tests that cut them.
//!
//! usage: nbd_reconnect INDEX DEAD_S COUNT [SERVER EXPORT]
//!
//! INDEX is N of `/dev/nbdN`, which was connected by netlink. DEAD_S is how many seconds the driver shall keep
//! requests when it has no connection. COUNT is the number of connections that the program opens and passes to the
//! driver, to SERVER, a socket's path or an address with a port. The program negotiates each of them, as clients of
//! the NBD protocol do, and checks nothing: not that the server has the same disk as before.
//!
//! nbd-client's option `--persist` should do this, but Debian's versions from 3.24 to 3.27 end when the connection
//! does. The messages are those of the kernel's `nbd-netlink.h`.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, sendto, socket};
use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// Type of a message to the controller of generic netlink, which knows the numbers of all families.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const RECONFIGURE: u8 = 3;
const DEVICE_INDEX: u16 = 1;
const SOCKETS: u16 = 7;
const DEAD_TIMEOUT: u16 = 8;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;
/// Marks an attribute that contains attributes.
const NESTED: u16 = 1 << 15;
const REQUEST_WITH_ACK: u16 = 1 | 4;
const ERROR: u16 = 2;
/// Bytes of the header of a message, and of the generic header after it.
const HEADERS: usize = 16 + 4;

/// Encodes an attribute, padded to four bytes.
fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let len = (4 + data.len()) as u16;
    let mut out = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// Sends a message to the kernel and returns the attributes of its answer, which are none if the answer says that it
/// has worked.
fn call(netlink: &OwnedFd, family: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>> {
    let mut message = ((HEADERS + attributes.len()) as u32).to_ne_bytes().to_vec();
    message.extend_from_slice(&family.to_ne_bytes());
    message.extend_from_slice(&REQUEST_WITH_ACK.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&[command, 1, 0, 0]);
    message.extend_from_slice(attributes);
    sendto(netlink, &message, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 4096];
    let (len, _) = recv(netlink, &mut answer, RecvFlags::empty())?;
    let answer =
        answer.get(..len).filter(|a| a.len() >= HEADERS).ok_or_else(|| Error::other("a short answer"))?;
    if u16::from_ne_bytes([answer[4], answer[5]]) != ERROR {
        return Ok(answer[HEADERS..].to_vec());
    }
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(Vec::new()),
        e => Err(Error::from_raw_os_error(-e)),
    }
}

/// Asks the controller for the number of the driver's family.
fn family(netlink: &OwnedFd) -> Result<u16> {
    let mut attributes = &call(netlink, CONTROLLER, GET_FAMILY, &attribute(FAMILY_NAME, b"nbd\0"))?[..];
    while let [l0, l1, k0, k1, rest @ ..] = attributes {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1]));
        if u16::from_ne_bytes([*k0, *k1]) == FAMILY_ID && rest.len() >= 2 {
            // The acknowledgement is another message.
            recv(netlink, &mut [0; 4096], RecvFlags::empty())?;
            return Ok(u16::from_ne_bytes([rest[0], rest[1]]));
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..).unwrap_or(&[]);
    }
    Err(Error::other("the kernel did not report the family nbd"))
}

/// Opens an export by its name, with the option that every server has.
fn negotiate(mut stream: impl Read + Write, export: &str) -> Result<()> {
    stream.read_exact(&mut [0; 18])?;
    stream.write_all(&3u32.to_be_bytes())?;
    stream
        .write_all(&[&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &(export.len() as u32).to_be_bytes()].concat())?;
    stream.write_all(export.as_bytes())?;
    stream.read_exact(&mut [0; 10])
}

fn connect(server: &str, export: &str) -> Result<OwnedFd> {
    if server.starts_with('/') {
        let stream = UnixStream::connect(server)?;
        negotiate(&stream, export)?;
        return Ok(stream.into());
    }
    let stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    negotiate(&stream, export)?;
    Ok(stream.into())
}

fn run(index: u32, dead_s: u64, connections: &[OwnedFd]) -> Result<()> {
    let netlink = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::GENERIC))?;
    let mut attributes = attribute(DEVICE_INDEX, &index.to_ne_bytes());
    attributes.extend(attribute(DEAD_TIMEOUT, &dead_s.to_ne_bytes()));
    let item = |fd: &OwnedFd| {
        let number = attribute(SOCKET_FD, &fd.as_fd().as_raw_fd().to_ne_bytes());
        attribute(SOCKET_ITEM | NESTED, &number)
    };
    if !connections.is_empty() {
        let items: Vec<u8> = connections.iter().flat_map(item).collect();
        attributes.extend(attribute(SOCKETS | NESTED, &items));
    }
    call(&netlink, family(&netlink)?, RECONFIGURE, &attributes).map(drop)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<u32>().ok());
    let (Some(index), Some(dead_s), Some(count)) = (number(0), number(1), number(2)) else {
        eprintln!("usage: nbd_reconnect INDEX DEAD_S COUNT [SERVER EXPORT]");
        return ExitCode::from(2);
    };
    let open = |_| match &args[3..] {
        [server, export] => connect(server, export),
        _ => Err(Error::other("SERVER and EXPORT are missing")),
    };
    let connections: Result<Vec<OwnedFd>> = (0..count).map(open).collect();
    match connections.and_then(|c| run(index, dead_s.into(), &c)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nbd_reconnect: {e}");
            ExitCode::FAILURE
        }
    }
}
