//! One client from its first byte to its last: the driver of the two machines.
//!
//! The thread of a connection drains the socket into a buffer, lets the session
//! execute every request in it, and sends all replies with one call.
//!
//! It cannot deadlock with a client that writes requests without reading replies (as a
//! client does whose own queue is full). Nothing here blocks in sending: when replies do not
//! fit, the thread waits for either direction, and goes on receiving and executing while
//! replies are queued, until both buffers are full. So a client that is itself waiting
//! to send is always received from, unless it has left more than a quarter of a
//! megabyte of replies unread and then sent an input buffer's worth of further requests; with
//! bounded memory a server can do no more.

use super::ProtocolError;
use super::buffer::Buffer;
use super::export::Export;
use super::handshake::{self, Agreed, Handshake, Step, TlsPolicy};
use super::tls::{TlsConfig, TlsTransport};
use super::transmission::{self, Session, Status};
use super::transport::Transport;
use std::io;
use std::time::{Duration, Instant};

/// Bytes of the input buffer: what one call can take of a queue of requests.
const INPUT_LEN: usize = 512 << 10;
/// How long a client that said goodbye may take to fetch its last replies.
const GOODBYE: Duration = Duration::from_secs(5);

const _: () = assert!(transmission::OUTPUT_LEN >= handshake::MAX_MESSAGE);
const _: () = assert!(INPUT_LEN >= handshake::MAX_MESSAGE && INPUT_LEN >= transmission::MIN_INPUT_LEN);

/// Why a connection ended, other than by the client's goodbye or hang-up.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The client broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The transport failed, or the handshake took too long.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Hears how far a client has come.
pub trait Stages {
    /// Asks whether a client may open the export. If so, it counts as one that has it open before it knows that.
    fn open(&self) -> bool;

    /// The client has sent its first request.
    fn used(&self);
}

/// How a negotiation ended.
enum Outcome {
    /// What was agreed on, and the last words of the server, still to be sent: they must not reach
    /// the client before the server counts it as a user of the export.
    Agreed(Agreed, Vec<u8>),
    StartTls,
    Closed,
}

/// Serves one client until it leaves.
///
/// The handshake, TLS included, ends within `handshake_time`; requests may be as far apart as the
/// client likes.
pub fn serve<T: Transport>(
    mut transport: T,
    export: &Export,
    tls: Option<&TlsConfig>,
    handshake_time: Duration,
    stages: &impl Stages,
) -> Result<(), ConnectionError> {
    let deadline = Instant::now() + handshake_time;
    let mut input = Buffer::new(INPUT_LEN);
    let policy = if tls.is_some() { TlsPolicy::Required } else { TlsPolicy::Absent };
    let mut machine = Handshake::new(export, policy);
    let mut hello = Vec::new();
    machine.greet(&mut hello);
    match (negotiate(&mut transport, &mut machine, &mut input, hello, deadline, stages)?, tls) {
        (Outcome::Agreed(agreed, welcome), _) => {
            transmit(transport, Session::new(export, agreed), input, &welcome, stages)
        }
        (Outcome::StartTls, Some(config)) => {
            if !input.is_empty() {
                return Err(ProtocolError::DataBeforeTls.into());
            }
            let mut tls = TlsTransport::accept(transport, config, deadline)?;
            match negotiate(&mut tls, &mut machine, &mut input, Vec::new(), deadline, stages)? {
                Outcome::Agreed(agreed, welcome) => {
                    transmit(tls, Session::new(export, agreed), input, &welcome, stages)
                }
                _ => {
                    tls.finish(deadline);
                    Ok(())
                }
            }
        }
        _ => {
            transport.finish(deadline);
            Ok(())
        }
    }
}

/// Runs the handshake machine; one message and its replies at a time, so that neither piles up.
fn negotiate<T: Transport>(
    transport: &mut T,
    machine: &mut Handshake<'_>,
    input: &mut Buffer,
    mut out: Vec<u8>,
    deadline: Instant,
    stages: &impl Stages,
) -> Result<Outcome, ConnectionError> {
    loop {
        send_all(transport, &out, deadline)?;
        out.clear();
        let (eaten, step) = machine.step(input.filled(), &mut out)?;
        input.consume(eaten);
        let outcome = match step {
            Step::Continue => continue,
            Step::NeedInput => {
                input.make_room(handshake::MAX_MESSAGE);
                transport.wait(true, false, Some(deadline))?;
                match transport.recv(input.space(), false) {
                    Ok(0) => return Ok(Outcome::Closed),
                    Ok(n) => input.advance(n),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e.into()),
                }
                continue;
            }
            Step::StartTls => Outcome::StartTls,
            Step::Transmission(agreed) if stages.open() => return Ok(Outcome::Agreed(agreed, out)),
            Step::Transmission(_) if machine.turn_away(&mut out) => continue,
            Step::Transmission(_) => Outcome::Closed,
            Step::Close => Outcome::Closed,
        };
        send_all(transport, &out, deadline)?;
        return Ok(outcome);
    }
}

fn send_all<T: Transport>(transport: &mut T, mut data: &[u8], deadline: Instant) -> io::Result<()> {
    while !data.is_empty() {
        match transport.send(data) {
            Ok(n) => data = &data[n.min(data.len())..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                transport.wait(false, true, Some(deadline))?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Executes and answers requests until the client leaves; sends `welcome` first.
fn transmit<T: Transport>(
    mut transport: T,
    mut session: Session<'_>,
    mut input: Buffer,
    welcome: &[u8],
    stages: &impl Stages,
) -> Result<(), ConnectionError> {
    let mut output = Buffer::new(transmission::OUTPUT_LEN);
    output.put(welcome);
    let mut is_used = false;
    loop {
        let ran = session.run(&mut input, &mut output);
        if !is_used && session.has_begun() {
            is_used = true;
            stages.used();
        }
        let status = match ran {
            Ok(Status::Closed) => {
                leave(transport, &output);
                return Ok(());
            }
            Ok(status) => status,
            Err(e) => {
                leave(transport, &output);
                return Err(e.into());
            }
        };
        if !output.is_empty() {
            match transport.send(output.filled()) {
                Ok(n) => output.consume(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        let drained = output.is_empty();
        if status == Status::OutputFull && output.len() < transmission::OUTPUT_HIGH_WATER {
            continue;
        }
        input.make_room(transmission::MIN_INPUT_LEN);
        if !drained {
            transport.wait(!input.is_full(), true, None)?;
        }
        if input.is_full() {
            continue;
        }
        match transport.recv(input.space(), drained) {
            Ok(0) => return Ok(()),
            Ok(n) => input.advance(n),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sends the last replies to a client that goes, and closes.
fn leave<T: Transport>(mut transport: T, output: &Buffer) {
    let deadline = Instant::now() + GOODBYE;
    // A client that does not wait for them has no use for them.
    let _ = send_all(&mut transport, output.filled(), deadline);
    transport.finish(deadline);
}
