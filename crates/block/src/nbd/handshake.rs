//! The negotiation before the first request: a machine over bytes, without I/O.
//!
//! Fixed newstyle only. The machine eats what the client sent, message by message,
//! and appends what is to be sent back; the driver (`connection.rs`) moves
//! the bytes, keeps the deadline, and switches to TLS when told to. Cut this way it can be
//! fed any bytes from a test or a fuzzer. It holds no client data: a message is
//! either whole in the caller's buffer, at most [`MAX_MESSAGE`] bytes, or is
//! refused as too big and skipped as it streams by.

use super::export::{BLOCK_SIZES, Export};
use super::proto::{self, Cursor, info, opt, rep};
use super::{ProtocolError, meta};

/// The most bytes of one option that are looked at: two strings of the protocol's limit and some.
const MAX_OPTION_DATA: usize = 16 << 10;
/// Bytes of an option's header.
const OPTION_HEADER: usize = 16;
/// The most bytes a caller must be able to hold for [`Handshake::step`].
pub const MAX_MESSAGE: usize = OPTION_HEADER + MAX_OPTION_DATA;

/// What the listener says about TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// There is none; asking for it is refused and nothing else changes.
    Absent,
    /// Nothing is told or done before TLS.
    Required,
    /// The bytes come through TLS already.
    Active,
}

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreed {
    /// Reads are answered in chunks, errors with a message.
    pub structured: bool,
    /// The client may ask for `base:allocation`.
    pub allocation: bool,
}

/// What the driver does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Call again with more input than now.
    NeedInput,
    /// Send the output, then call again.
    Continue,
    /// Send the output, then speak TLS; the machine already counts on it.
    StartTls,
    /// Send the output; requests follow.
    Transmission(Agreed),
    /// Send the output, then close: the client said goodbye.
    Close,
}

/// One client's negotiation.
pub struct Handshake<'e> {
    export: &'e Export,
    tls: TlsPolicy,
    client_flags: Option<u32>,
    structured: bool,
    /// The export name for which `base:allocation` was selected.
    allocation_for: Option<Vec<u8>>,
    /// Bytes of a refused option that are still to come.
    skip: u32,
    /// The option that led to [`Step::Transmission`].
    opened_by: u32,
}

impl<'e> Handshake<'e> {
    /// A machine at the start, for one client of `export`.
    pub fn new(export: &'e Export, tls: TlsPolicy) -> Self {
        let (client_flags, allocation_for) = (None, None);
        Handshake { export, tls, client_flags, structured: false, allocation_for, skip: 0, opened_by: 0 }
    }

    /// Appends what the server says before it has heard anything.
    pub fn greet(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&proto::MAGIC.to_be_bytes());
        out.extend_from_slice(&proto::OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(proto::FLAG_FIXED_NEWSTYLE | proto::FLAG_NO_ZEROES).to_be_bytes());
    }

    /// Eats at most one message from the front of `input`; returns how many bytes, and what next.
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
        self.opened_by = option;
        let step = self.option(option, data, out)?;
        Ok((OPTION_HEADER + data.len(), step))
    }

    /// Takes [`Step::Transmission`] back, with what it has put in `out`, because too many clients have the export open.
    ///
    /// Returns whether the negotiation goes on: the oldest way in knows no refusal, so there the connection is closed.
    pub fn turn_away(&mut self, out: &mut Vec<u8>) -> bool {
        out.clear();
        if self.opened_by == opt::EXPORT_NAME {
            return false;
        }
        reply_error(out, self.opened_by, rep::ERR_POLICY, "too many clients have this export open");
        true
    }

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

    /// The oldest way in: no error reply exists, so a wrong name closes the connection.
    fn export_name(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<Step, ProtocolError> {
        if !self.export.answers_to(name) {
            return Err(ProtocolError::NoSuchExport);
        }
        out.extend_from_slice(&self.export.device().len_bytes().to_be_bytes());
        out.extend_from_slice(&self.export.flags(self.structured).to_be_bytes());
        if self.client_flags.unwrap_or(0) & u32::from(proto::FLAG_NO_ZEROES) == 0 {
            out.extend_from_slice(&[0; 124]);
        }
        Ok(Step::Transmission(self.agreed(name)))
    }

    /// What was agreed on by earlier options is forgotten: it was not protected.
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

    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        let Some((name, wanted)) = info_request(data) else {
            reply_error(out, option, rep::ERR_INVALID, "malformed option");
            return Step::Continue;
        };
        if !self.export.answers_to(name) {
            reply_error(out, option, rep::ERR_UNKNOWN, "no such export");
            return Step::Continue;
        }
        let size = self.export.device().len_bytes().to_be_bytes();
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
        if option == opt::GO { Step::Transmission(self.agreed(name)) } else { Step::Continue }
    }

    fn meta(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        if option == opt::SET_META_CONTEXT {
            self.allocation_for = None;
        }
        if !self.structured {
            return reply_error(out, option, rep::ERR_INVALID, "structured replies come first");
        }
        let Some((name, queries)) = meta::parse(data) else {
            return reply_error(out, option, rep::ERR_INVALID, "malformed option");
        };
        if !self.export.answers_to(name) {
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

    /// A metadata context holds only for the very name it was selected for.
    fn agreed(&self, name: &[u8]) -> Agreed {
        let allocation = self.structured && self.allocation_for.as_deref() == Some(name);
        Agreed { structured: self.structured, allocation }
    }
}

/// The number and data length of the option in front, `None` if the header is not all there.
fn option_header(at: &mut Cursor<'_>) -> Result<Option<(u32, u32)>, ProtocolError> {
    let Some(magic) = at.u64() else { return Ok(None) };
    if magic != proto::OPTION_MAGIC {
        return Err(ProtocolError::OptionMagic(magic));
    }
    Ok(at.u32().zip(at.u32()))
}

/// The export name and the 16-bit kinds asked for; `None` unless the message is exactly that.
fn info_request(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = Cursor(data);
    let name = at.string()?;
    let count = at.u16()?;
    let wanted = at.bytes(usize::from(count) * 2)?;
    at.0.is_empty().then_some((name, wanted))
}

fn reply_error(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) {
    proto::put_option_reply(out, option, kind, &[why.as_bytes()]);
}
