//! [`serve`] drives one connection from its first byte to its last.
//!
//! It runs on the connection's thread. It drives two state machines without I/O: first the [`Handshake`], then the
//! [`Session`]. In transmission, the thread receives what the socket has into a buffer, the session executes every
//! request in it, and the thread sends all replies with one call.
//!
//! The thread never blocks in sending. If replies do not fit the socket, it waits for either direction with `poll`,
//! and goes on receiving and executing requests. At 256 KiB of unsent replies ([`transmission::OUTPUT_HIGH_WATER`]) it
//! stops executing but still receives; when the input buffer is full too, it only waits to send, because a server with
//! bounded memory has to stop receiving. Up to there it does not deadlock with a client that sends requests before it
//! reads replies.
//!
//! A client may shut down the sending half of its connection after its last requests, with or without a disconnect request
//! among them. The thread executes and answers what has arrived, and then closes the connection.

use super::ProtocolError;
use super::buffer::Buffer;
use super::export::Export;
use super::handshake::{self, Handshake, Negotiated, Step, TlsPolicy};
use super::limits::Limits;
use super::tls::{TlsConfig, TlsTransport};
use super::transmission::{self, Session, Status};
use super::transport::{Awaited, Transport};
use pagefold_sys::timer;
use std::io;
use std::time::{Duration, Instant};

/// Bytes of the input buffer, the most that one call receives of a queue of requests.
const INPUT_LEN: usize = 512 << 10;
/// Time limit for sending the last replies when a session ends, and until then for a client that sends nothing more and
/// takes no replies.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(5);

const _: () = assert!(transmission::OUTPUT_LEN >= handshake::MAX_MESSAGE);
const _: () = assert!(INPUT_LEN >= handshake::MAX_MESSAGE && INPUT_LEN >= transmission::MIN_INPUT_LEN);

/// Why a connection failed. A client that disconnects or closes its socket is no failure.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The client broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The transport failed, or the handshake took too long.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Decides whether a client may open the export, and learns of its first request. The server implements it.
pub trait ExportAccess {
    /// Returns whether the client may open the export. If so, the client counts as one that has the export open from
    /// then on, before the reply is sent.
    fn try_open(&self) -> bool;

    /// Notes that the client has sent its first request.
    fn first_request(&self);
}

/// The result of [`negotiate`].
enum Negotiation {
    /// The client has opened the export. The bytes are the server's last reply, which the caller still has to send:
    /// it must not reach the client before the server counts the client as one that has the export open.
    Complete(Negotiated, Vec<u8>),
    StartTls,
    Closed,
}

/// Serves one client until it disconnects.
///
/// Fails with `TimedOut` if the handshake, TLS included, takes longer than its limit. There is no time limit
/// between requests.
pub fn serve<T: Transport>(
    mut transport: T,
    export: &Export,
    tls: Option<&TlsConfig>,
    limits: &Limits,
    access: &impl ExportAccess,
) -> Result<(), ConnectionError> {
    let deadline = timer::deadline(Instant::now(), limits.handshake_time);
    let mut input = Buffer::new(INPUT_LEN);
    let policy = if tls.is_some() { TlsPolicy::Required } else { TlsPolicy::Absent };
    let mut machine = Handshake::new(export, policy);
    let mut greeting = Vec::new();
    machine.greet(&mut greeting);
    match (negotiate(&mut transport, &mut machine, &mut input, greeting, deadline, access)?, tls) {
        (Negotiation::Complete(negotiated, last_reply), _) => {
            transmit(transport, Session::new(export, negotiated), input, &last_reply, access)
        }
        (Negotiation::StartTls, Some(config)) => {
            if !input.is_empty() {
                return Err(ProtocolError::DataBeforeTls.into());
            }
            let mut tls = TlsTransport::accept(transport, config, deadline)?;
            match negotiate(&mut tls, &mut machine, &mut input, Vec::new(), deadline, access)? {
                Negotiation::Complete(negotiated, last_reply) => {
                    transmit(tls, Session::new(export, negotiated), input, &last_reply, access)
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

/// Runs the handshake machine until it ends or TLS has to start. It handles one message at a time and sends its replies
/// before the next, so that neither accumulates in memory.
fn negotiate<T: Transport>(
    transport: &mut T,
    machine: &mut Handshake<'_>,
    input: &mut Buffer,
    mut out: Vec<u8>,
    deadline: Instant,
    access: &impl ExportAccess,
) -> Result<Negotiation, ConnectionError> {
    loop {
        send_all(transport, &out, deadline)?;
        out.clear();
        let (consumed, step) = machine.step(input.filled(), &mut out)?;
        input.consume(consumed);
        let negotiation = match step {
            Step::Continue => continue,
            Step::NeedInput => {
                input.make_room(handshake::MAX_MESSAGE);
                transport.wait(Awaited::READABLE, Some(deadline))?;
                match transport.recv(input.space(), false) {
                    Ok(0) => return Ok(Negotiation::Closed),
                    Ok(n) => input.advance(n),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e.into()),
                }
                continue;
            }
            Step::StartTls => Negotiation::StartTls,
            Step::Transmission(negotiated) if access.try_open() => {
                return Ok(Negotiation::Complete(negotiated, out));
            }
            Step::Transmission(_) if machine.refuse_open(&mut out) => continue,
            Step::Transmission(_) => Negotiation::Closed,
            Step::Close => Negotiation::Closed,
        };
        send_all(transport, &out, deadline)?;
        return Ok(negotiation);
    }
}

fn send_all<T: Transport>(transport: &mut T, mut data: &[u8], deadline: Instant) -> io::Result<()> {
    while !data.is_empty() {
        match transport.send(data) {
            Ok(n) => data = &data[n.min(data.len())..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                transport.wait(Awaited::WRITABLE, Some(deadline))?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Executes and answers requests until the client disconnects. Sends `last_handshake_reply` first.
fn transmit<T: Transport>(
    mut transport: T,
    mut session: Session<'_>,
    mut input: Buffer,
    last_handshake_reply: &[u8],
    access: &impl ExportAccess,
) -> Result<(), ConnectionError> {
    let mut output = Buffer::new(transmission::OUTPUT_LEN);
    output.put(last_handshake_reply);
    let mut has_begun = false;
    // The client has shut down the sending half of its connection.
    let mut input_ended = false;
    loop {
        let result = session.run(&mut input, &mut output);
        if !has_begun && session.has_begun() {
            has_begun = true;
            access.first_request();
        }
        let status = match result {
            Ok(status) => status,
            Err(e) => {
                send_last_and_close(transport, &output);
                return Err(e.into());
            }
        };
        let all_answered = status == Status::NeedInput && !session.is_deferring();
        if status == Status::Closed || input_ended && all_answered {
            send_last_and_close(transport, &output);
            return Ok(());
        }
        if !output.is_empty() {
            match transport.send(output.filled()) {
                Ok(n) => {
                    output.consume(n);
                    session.note_sent(n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The client has closed both halves.
                Err(_) if input_ended => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        let drained = output.is_empty();
        if status == Status::OutputFull && output.len() < transmission::OUTPUT_HIGH_WATER {
            continue;
        }
        input.make_room(transmission::MIN_INPUT_LEN);
        let is_ending = input_ended || status == Status::Closing;
        let receives = !is_ending && !input.is_full();
        // While there is no space for an answer, it is not awaited: this thread would not sleep.
        let has_room = output.len() < transmission::OUTPUT_HIGH_WATER;
        let other = session.has_answer().filter(|_| has_room);
        if !drained || session.is_deferring() {
            let deadline = (is_ending && !drained).then(|| Instant::now() + LAST_REPLIES_TIMEOUT);
            match transport.wait(Awaited { readable: receives, writable: !drained, other }, deadline) {
                Err(e) if is_ending && e.kind() == io::ErrorKind::TimedOut => return Ok(()),
                waited => waited?,
            }
        }
        if !receives {
            continue;
        }
        let waits = drained && !session.is_deferring();
        match receive(&mut transport, &mut input, waits)? {
            Some(0) => input_ended = true,
            Some(n) => {
                input.advance(n);
                session.note_received();
            }
            None => {}
        }
    }
}

/// Receives what there is space for. `None`: nothing has arrived.
fn receive<T: Transport>(transport: &mut T, input: &mut Buffer, waits: bool) -> io::Result<Option<usize>> {
    match transport.recv(input.space(), waits) {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

/// Sends the last replies and closes the connection.
fn send_last_and_close<T: Transport>(mut transport: T, output: &Buffer) {
    let deadline = Instant::now() + LAST_REPLIES_TIMEOUT;
    // An error means that the client did not wait for its replies.
    let _ = send_all(&mut transport, output.filled(), deadline);
    transport.finish(deadline);
}
