//! [`Handshake`], the negotiation before the first request, as a state machine without I/O.
//!
//! It speaks fixed newstyle only. The machine consumes the client's bytes message by message and appends the replies
//! to a buffer. The driver (`connection.rs`) moves the bytes, checks the deadline, and starts TLS at
//! [`Step::StartTls`]. Without I/O, a test or a fuzzer can pass any bytes to the machine.
//!
//! The machine buffers no input: it handles a message once it is whole in the caller's buffer. It refuses a message
//! longer than [`MAX_MESSAGE`] bytes, and skips its bytes as they arrive.

use super::export::{BLOCK_SIZES, Export};
use super::proto::{self, Cursor, info, opt, rep};
use super::{ProtocolError, meta};

/// The most data of one option, bytes; a longer option is refused. Two strings of the protocol's limit fit, and more.
const MAX_OPTION_DATA: usize = 16 << 10;
/// Bytes of an option's header.
const OPTION_HEADER: usize = 16;
/// The longest message, bytes: the input buffer of [`Handshake::step`] has to hold as many.
pub const MAX_MESSAGE: usize = OPTION_HEADER + MAX_OPTION_DATA;

/// Whether a connection uses TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// The listener has no TLS: `STARTTLS` is refused and the negotiation goes on.
    Absent,
    /// Before TLS, every option but `STARTTLS` and `ABORT` is refused.
    Required,
    /// TLS is active: the machine sees decrypted bytes.
    Active,
}

/// The protocol features that both sides have negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Negotiated {
    /// Structured replies: reads are answered in chunks, errors with a message.
    pub structured: bool,
    /// The client may request block status in the context `base:allocation`.
    pub allocation: bool,
}

/// The driver's next action after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Call [`Handshake::step`] again with more input.
    NeedInput,
    /// Send the output, then call [`Handshake::step`] again.
    Continue,
    /// Send the output, then start TLS. All later input of the machine is decrypted.
    StartTls,
    /// The client opens the export: send the output; requests follow.
    Transmission(Negotiated),
    /// Send the output, then close: the client has aborted.
    Close,
}

/// The state of one client's negotiation.
pub struct Handshake<'e> {
    export: &'e Export,
    tls: TlsPolicy,
    client_flags: Option<u32>,
    structured: bool,
    /// The export name for which `base:allocation` was selected.
    allocation_for: Option<Vec<u8>>,
    /// Bytes of a refused option that have not arrived yet.
    skip: u32,
    /// The latest option; at [`Step::Transmission`], the one that opens the export.
    last_option: u32,
}

impl<'e> Handshake<'e> {
    /// Makes the state machine for a new client of `export`.
    pub fn new(export: &'e Export, tls: TlsPolicy) -> Self {
        let (client_flags, allocation_for) = (None, None);
        Handshake { export, tls, client_flags, structured: false, allocation_for, skip: 0, last_option: 0 }
    }

    /// Appends the server's greeting, its first message.
    pub fn greet(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&proto::MAGIC.to_be_bytes());
        out.extend_from_slice(&proto::OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(proto::FLAG_FIXED_NEWSTYLE | proto::FLAG_NO_ZEROES).to_be_bytes());
    }

    /// Consumes at most one message from the front of `input`. Returns the number of bytes consumed and what the
    /// driver has to do next.
    ///
    /// Appends at most [`MAX_MESSAGE`] bytes to `out`.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), ProtocolError> {
        if self.skip > 0 {
            let n = input.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
            self.skip -= n as u32;
            return Ok((n, if self.skip > 0 { Step::NeedInput } else { Step::Continue }));
        }
        let mut at = Cursor(input);
        let Some(client_flags) = self.client_flags else {
            let Some(flags) = at.u32() else { return Ok((0, Step::NeedInput)) };
            let known = u32::from(proto::FLAG_FIXED_NEWSTYLE | proto::FLAG_NO_ZEROES);
            if flags & !known != 0 {
                return Err(ProtocolError::ClientFlags(flags));
            }
            self.client_flags = Some(flags);
            return Ok((4, Step::Continue));
        };
        let Some((option, len)) = option_header(&mut at)? else { return Ok((0, Step::NeedInput)) };
        let fixed = client_flags & u32::from(proto::FLAG_FIXED_NEWSTYLE) != 0;
        if !fixed && option != opt::EXPORT_NAME {
            return Err(ProtocolError::NotFixed(option));
        }
        if len as usize > MAX_OPTION_DATA {
            self.skip = len;
            return match option {
                opt::EXPORT_NAME => Err(ProtocolError::NoSuchExport),
                _ => {
                    reply_error(out, option, rep::ERR_TOO_BIG, "option too long");
                    Ok((OPTION_HEADER, Step::Continue))
                }
            };
        }
        let Some(data) = at.bytes(len as usize) else { return Ok((0, Step::NeedInput)) };
        self.last_option = option;
        let step = self.option(option, data, out)?;
        Ok((OPTION_HEADER + data.len(), step))
    }

    /// Refuses the client because too many have the export open: replaces the reply in `out` that led to
    /// [`Step::Transmission`] by an error.
    ///
    /// Returns whether the negotiation goes on. It cannot after `EXPORT_NAME`, which has no error reply; the driver
    /// then closes the connection.
    pub fn refuse_open(&mut self, out: &mut Vec<u8>) -> bool {
        out.clear();
        if self.last_option == opt::EXPORT_NAME {
            return false;
        }
        reply_error(out, self.last_option, rep::ERR_POLICY, "too many clients have this export open");
        true
    }

    /// Handles one whole option.
    fn option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, ProtocolError> {
        if self.tls == TlsPolicy::Required && option != opt::STARTTLS && option != opt::ABORT {
            if option == opt::EXPORT_NAME {
                return Err(ProtocolError::TlsRequired);
            }
            reply_error(out, option, rep::ERR_TLS_REQD, "this server requires TLS: use STARTTLS first");
            return Ok(Step::Continue);
        }
        match option {
            opt::EXPORT_NAME => return self.export_name(data, out),
            opt::ABORT => {
                proto::put_option_reply(out, option, rep::ACK, &[]);
                return Ok(Step::Close);
            }
            opt::STARTTLS => return Ok(self.start_tls(data, out)),
            opt::INFO | opt::GO => return Ok(self.info(option, data, out)),
            opt::LIST => self.list(data, out),
            opt::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                proto::put_option_reply(out, option, rep::ACK, &[]);
            }
            opt::STRUCTURED_REPLY => reply_error(out, option, rep::ERR_INVALID, "option takes no data"),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta(option, data, out),
            _ => reply_error(out, option, rep::ERR_UNSUP, "unknown option"),
        }
        Ok(Step::Continue)
    }

    /// `EXPORT_NAME`: opens the export. The option has no error reply, so a wrong name closes the connection.
    fn export_name(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<Step, ProtocolError> {
        if !self.export.is_named(name) || self.export.device().len_bytes() == 0 {
            return Err(ProtocolError::NoSuchExport);
        }
        out.extend_from_slice(&self.export.device().len_bytes().to_be_bytes());
        out.extend_from_slice(&self.export.flags(self.structured).to_be_bytes());
        if self.client_flags.unwrap_or(0) & u32::from(proto::FLAG_NO_ZEROES) == 0 {
            out.extend_from_slice(&[0; 124]);
        }
        Ok(Step::Transmission(self.negotiated(name)))
    }

    /// `STARTTLS`: discards all that earlier options negotiated, because they were not protected.
    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let refused = match self.tls {
            _ if !data.is_empty() => Some((rep::ERR_INVALID, "option takes no data")),
            TlsPolicy::Absent => Some((rep::ERR_UNSUP, "no TLS on this listener")),
            TlsPolicy::Active => Some((rep::ERR_INVALID, "TLS is active already")),
            TlsPolicy::Required => None,
        };
        if let Some((kind, why)) = refused {
            reply_error(out, opt::STARTTLS, kind, why);
            return Step::Continue;
        }
        proto::put_option_reply(out, opt::STARTTLS, rep::ACK, &[]);
        self.tls = TlsPolicy::Active;
        self.structured = false;
        self.allocation_for = None;
        Step::StartTls
    }

    /// `LIST`: replies with the one export.
    fn list(&self, data: &[u8], out: &mut Vec<u8>) {
        if !data.is_empty() {
            return reply_error(out, opt::LIST, rep::ERR_INVALID, "option takes no data");
        }
        let name = self.export.name().as_bytes();
        let len = (name.len() as u32).to_be_bytes();
        let parts = [&len[..], name, self.export.description().as_bytes()];
        proto::put_option_reply(out, opt::LIST, rep::SERVER, &parts);
        proto::put_option_reply(out, opt::LIST, rep::ACK, &[]);
    }

    /// `INFO` and `GO`: replies with size, flags, block sizes and the strings that the client requests. `GO` opens the
    /// export.
    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        let Some((name, wanted)) = info_request(data) else {
            reply_error(out, option, rep::ERR_INVALID, "malformed option");
            return Step::Continue;
        };
        if !self.export.is_named(name) {
            reply_error(out, option, rep::ERR_UNKNOWN, "no such export");
            return Step::Continue;
        }
        let len_bytes = self.export.device().len_bytes();
        if len_bytes == 0 {
            reply_error(out, option, rep::ERR_UNKNOWN, "the disk has no size yet");
            return Step::Continue;
        }
        let size = len_bytes.to_be_bytes();
        let flags = self.export.flags(self.structured).to_be_bytes();
        proto::put_option_reply(out, option, rep::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        let [min, preferred, max] = BLOCK_SIZES.map(u32::to_be_bytes);
        let sizes = [&info::BLOCK_SIZE.to_be_bytes()[..], &min, &preferred, &max];
        proto::put_option_reply(out, option, rep::INFO, &sizes);
        for (kind, text) in [(info::NAME, self.export.name()), (info::DESCRIPTION, self.export.description())]
        {
            if wanted.chunks_exact(2).any(|w| w == kind.to_be_bytes()) && !text.is_empty() {
                proto::put_option_reply(out, option, rep::INFO, &[&kind.to_be_bytes(), text.as_bytes()]);
            }
        }
        proto::put_option_reply(out, option, rep::ACK, &[]);
        if option == opt::GO { Step::Transmission(self.negotiated(name)) } else { Step::Continue }
    }

    /// `LIST_META_CONTEXT` and `SET_META_CONTEXT`: lists or selects `base:allocation`.
    fn meta(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        if option == opt::SET_META_CONTEXT {
            self.allocation_for = None;
        }
        if !self.structured {
            return reply_error(out, option, rep::ERR_INVALID, "negotiate structured replies first");
        }
        let Some((name, queries)) = meta::parse(data) else {
            return reply_error(out, option, rep::ERR_INVALID, "malformed option");
        };
        if !self.export.is_named(name) {
            return reply_error(out, option, rep::ERR_UNKNOWN, "no such export");
        }
        let set = option == opt::SET_META_CONTEXT;
        if queries.clone().any(|q| meta::names_allocation(q, set)) || (!set && queries.count() == 0) {
            let id = if set { proto::BASE_ALLOCATION_ID } else { 0 };
            let parts = [&id.to_be_bytes()[..], proto::BASE_ALLOCATION];
            proto::put_option_reply(out, option, rep::META_CONTEXT, &parts);
            if set {
                self.allocation_for = Some(name.to_vec());
            }
        }
        proto::put_option_reply(out, option, rep::ACK, &[]);
    }

    /// The features negotiated for `name`: a metadata context is valid only for the name that it was selected with.
    fn negotiated(&self, name: &[u8]) -> Negotiated {
        let allocation = self.structured && self.allocation_for.as_deref() == Some(name);
        Negotiated { structured: self.structured, allocation }
    }
}

/// Reads the number and the data length of the next option; `None` if its header is not complete.
fn option_header(at: &mut Cursor<'_>) -> Result<Option<(u32, u32)>, ProtocolError> {
    let Some(magic) = at.u64() else { return Ok(None) };
    if magic != proto::OPTION_MAGIC {
        return Err(ProtocolError::OptionMagic(magic));
    }
    Ok(at.u32().zip(at.u32()))
}

/// Parses the data of `INFO` and `GO`: the export name and the requested 16-bit kinds. `None` if it is malformed.
fn info_request(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = Cursor(data);
    let name = at.string()?;
    let count = at.u16()?;
    let wanted = at.bytes(usize::from(count) * 2)?;
    at.0.is_empty().then_some((name, wanted))
}

/// Appends an error reply with a message for people.
fn reply_error(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) {
    proto::put_option_reply(out, option, kind, &[why.as_bytes()]);
}
