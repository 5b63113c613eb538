//! A small NBD client that sends exactly the bytes that a test chooses, and test servers.
//!
//! The client shares the protocol's numbers with the server, but not the code that encodes and parses messages.
#![allow(dead_code)]

use pagefold_block::nbd::proto::{self, flag, opt, rep};
use pagefold_block::nbd::{Export, Limits, Server, UnixSocket, uri};
use pagefold_block::{BlockDevice, RamDevice};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

pub const NAME: &str = "disk";
pub const DEVICE_LEN: u64 = 3 * 1024 * 1024 + 1000;

/// A server on a unix socket in a temporary folder.
pub struct Served {
    pub server: Server,
    pub path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Served {
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self::with(Export::new(NAME, "a test disk", device).unwrap(), Limits::default())
    }

    pub fn ram() -> Self {
        Self::new(Arc::new(RamDevice::new(DEVICE_LEN)))
    }

    pub fn with(export: Export, limits: Limits) -> Self {
        Self::of(Server::new(export, limits))
    }

    pub fn of(server: Server) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd.sock");
        server.serve_unix(UnixSocket::bind(&path).unwrap()).unwrap();
        Served { server, path, _dir: dir }
    }

    pub fn uri(&self) -> String {
        uri::unix(NAME, &self.path)
    }

    /// A connected client that has exchanged greetings with the server.
    pub fn client(&self) -> Client<UnixStream> {
        let mut client = self.silent_client();
        client.greet(3);
        client
    }

    /// A connected client that has sent nothing.
    pub fn silent_client(&self) -> Client<UnixStream> {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Client::new(stream)
    }

    /// A client that has the export open.
    pub fn open(&self, structured: bool) -> Client<UnixStream> {
        let mut client = self.client();
        client.open(structured);
        client
    }
}

pub struct Client<S> {
    pub stream: S,
    pub structured: bool,
    pub cookie: u64,
    /// The message of the latest error chunk.
    pub message: String,
}

#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Chunk {
    None,
    Data(u64, Vec<u8>),
    Status(Vec<(u32, u32)>),
    Error(u32, Option<u64>),
}

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S) -> Self {
        Client { stream, structured: false, cookie: 100, message: String::new() }
    }

    pub fn take(&mut self, n: usize) -> Vec<u8> {
        let mut buf = vec![0; n];
        self.stream.read_exact(&mut buf).unwrap();
        buf
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    /// Waits for the end of the stream; returns whether the server disconnected without sending another byte.
    pub fn is_disconnected(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub fn greet(&mut self, flags: u32) {
        assert_eq!(self.take(8), b"NBDMAGIC");
        assert_eq!(self.take(8), b"IHAVEOPT");
        assert_eq!(self.u16(), 3);
        self.stream.write_all(&flags.to_be_bytes()).unwrap();
    }

    pub fn send_option(&mut self, option: u32, data: &[u8]) {
        self.stream.write_all(&option_bytes(option, data)).unwrap();
    }

    pub fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.u64(), proto::OPTION_REPLY_MAGIC);
        assert_eq!(self.u32(), option);
        let kind = self.u32();
        let len = self.u32();
        (kind, self.take(len as usize))
    }

    /// Sends an option and returns all replies to it, up to and including the final one.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data);
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply(option);
            let last = reply.0 == rep::ACK || reply.0 >= 1 << 31;
            replies.push(reply);
            if last {
                return replies;
            }
        }
    }

    /// Sends an option and returns the kind of the final reply to it.
    pub fn final_reply(&mut self, option: u32, data: &[u8]) -> u32 {
        self.option(option, data).pop().unwrap().0
    }

    /// Opens the export; returns size and transmission flags.
    pub fn open(&mut self, structured: bool) -> (u64, u16) {
        if structured {
            assert_eq!(self.final_reply(opt::STRUCTURED_REPLY, b""), rep::ACK);
            assert_eq!(
                self.final_reply(opt::SET_META_CONTEXT, &meta_data(NAME, &["base:allocation"])),
                rep::ACK
            );
            self.structured = true;
        }
        let replies = self.option(opt::GO, &info_data(NAME, &[3]));
        let (kind, export) = &replies[0];
        assert_eq!((*kind, &export[..2]), (rep::INFO, &[0, 0][..]));
        let size = u64::from_be_bytes(export[2..10].try_into().unwrap());
        (size, u16::from_be_bytes(export[10..12].try_into().unwrap()))
    }

    pub fn send(&mut self, flags: u16, command: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        self.cookie += 1;
        let mut bytes = request_bytes(flags, command, self.cookie, offset, len);
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes).unwrap();
        self.cookie
    }

    /// Reads a simple reply without data; returns its error and cookie.
    pub fn simple(&mut self) -> (u32, u64) {
        assert_eq!(self.u32(), proto::SIMPLE_REPLY_MAGIC);
        (self.u32(), self.u64())
    }

    /// Reads the simple or structured reply to a request other than a read; returns its error.
    pub fn reply_error(&mut self, cookie: u64) -> u32 {
        match self.u32() {
            proto::SIMPLE_REPLY_MAGIC => {
                let error = self.u32();
                assert_eq!(self.u64(), cookie);
                error
            }
            proto::STRUCTURED_REPLY_MAGIC => match &self.chunks_after_magic(cookie)[..] {
                [Chunk::Error(error, _)] => *error,
                other => panic!("{other:?}"),
            },
            other => panic!("reply magic {other:#x}"),
        }
    }

    pub fn chunks(&mut self, cookie: u64) -> Vec<Chunk> {
        assert_eq!(self.u32(), proto::STRUCTURED_REPLY_MAGIC);
        self.chunks_after_magic(cookie)
    }

    fn chunks_after_magic(&mut self, cookie: u64) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        loop {
            let (flags, kind) = (self.u16(), self.u16());
            assert_eq!(self.u64(), cookie);
            let len = self.u32() as usize;
            let body = self.take(len);
            let be32 = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().unwrap());
            let be64 = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().unwrap());
            chunks.push(match kind {
                0 => {
                    assert!(flags == 1 && body.is_empty());
                    Chunk::None
                }
                1 => Chunk::Data(be64(0), body[8..].to_vec()),
                5 => {
                    assert_eq!(be32(0), 1);
                    Chunk::Status((4..len).step_by(8).map(|at| (be32(at), be32(at + 4))).collect())
                }
                0x8001 | 0x8002 => {
                    let message = u16::from_be_bytes([body[4], body[5]]) as usize;
                    self.message = String::from_utf8(body[6..6 + message].to_vec()).unwrap();
                    let offset = (kind == 0x8002).then(|| be64(6 + message));
                    assert_eq!(len, 6 + message + if offset.is_some() { 8 } else { 0 });
                    Chunk::Error(be32(0), offset)
                }
                other => panic!("chunk type {other}"),
            });
            if flags & 1 != 0 {
                return chunks;
            }
            assert_eq!(self.u32(), proto::STRUCTURED_REPLY_MAGIC);
        }
    }

    /// Sends a request other than a read and returns the error in its reply.
    pub fn call(&mut self, flags: u16, command: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        let cookie = self.send(flags, command, offset, len, data);
        self.reply_error(cookie)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.call(0, proto::cmd::WRITE, offset, data.len() as u32, data), 0);
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let cookie = self.send(0, proto::cmd::READ, offset, len, &[]);
        self.read_reply(cookie, 0, offset, len).unwrap()
    }

    /// Reads the reply to a read; returns the data of all of its chunks, or its error.
    pub fn read_reply(&mut self, cookie: u64, flags: u16, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        if !self.structured {
            let (error, reply_cookie) = self.simple();
            assert_eq!(reply_cookie, cookie);
            return if error == 0 { Ok(self.take(len as usize)) } else { Err(error) };
        }
        let chunks = self.chunks(cookie);
        let data_chunks = chunks.iter().filter(|c| matches!(c, Chunk::Data(..))).count();
        assert!(flags & flag::DF == 0 || data_chunks <= 1);
        let mut data = Vec::new();
        for chunk in chunks {
            match chunk {
                Chunk::Data(at, bytes) => {
                    assert_eq!(at, offset + data.len() as u64);
                    data.extend_from_slice(&bytes);
                }
                Chunk::None => {}
                Chunk::Error(error, _) => return Err(error),
                Chunk::Status(_) => panic!("block status in a read"),
            }
        }
        assert_eq!(data.len(), len as usize);
        Ok(data)
    }
}

pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

pub fn request_bytes(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = proto::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// The data of `INFO` and `GO`.
pub fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|k| bytes.extend_from_slice(&k.to_be_bytes()));
    bytes
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|q| bytes.extend_from_slice(&string(q)));
    bytes
}

/// Returns whether `tool` is installed; prints that `test` is skipped if not.
pub fn have(tool: &str, test: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()));
    if !found {
        pagefold_testkit::skipped!("{test}: {tool} is not installed");
    }
    found
}

/// Runs a command that must succeed within two minutes, and returns its standard output.
pub fn run(program: &str, args: &[&str]) -> String {
    let out = output(program, args);
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{program} {args:?}: {}\n{stdout}\n{stderr}", out.status);
    stdout.into_owned()
}

/// Runs a command and kills it after two minutes, so that a hang fails the test.
pub fn output(program: &str, args: &[&str]) -> Output {
    Command::new("timeout").args(["-k", "5", "120", program]).args(args).output().unwrap()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
