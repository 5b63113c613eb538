//! Requests made by hand, and what is left of them when bytes are missing, added or wrong.

use super::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// A request with these arguments, whose header has the right length.
fn request(number: u32, arguments: &[&[u8]]) -> Vec<u8> {
    let arguments = arguments.concat();
    let len = (size_of::<InHeader>() + arguments.len()) as u32;
    let header = InHeader { len, opcode: number, unique: 7, nodeid: 9, uid: 1000, ..InHeader::default() };
    [header.as_bytes(), &arguments].concat()
}

fn decoded(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let (header, arguments) = split(bytes)?;
    decode(&header, arguments)
}

/// Little- or big-endian words, as the machine has them.
fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn halves(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// A request of each operation that has arguments: its number, the structure, the rest, and its meaning.
fn examples() -> Vec<(u32, Vec<u8>, &'static [u8], Operation<'static>)> {
    let read = [words(&[3, 8192]), halves(&[4096, 0]), words(&[0, 0])].concat();
    let range = Range { handle: Handle(3), offset: 8192, size: 4096 };
    let write = [words(&[3, 8192]), halves(&[4, 0]), words(&[0, 0])].concat();
    let mut set = halves(&[valid::SIZE | valid::GID, 0]);
    set.extend(words(&[0, 1 << 40, 0, 0, 0, 0]));
    set.extend(halves(&[0, 0, 0, 0o777, 0, 5, 6, 0]));
    let changes = Changes { size: Some(1 << 40), gid: Some(6), ..Changes::default() };
    let init = Init { major: 7, minor: 45, max_readahead: 131_072, flags: 1 << 41 | abi::INIT_EXT | 1 };
    vec![
        (opcode::INIT, halves(&[7, 45, 131_072, 1 << 30 | 1]), &[0, 2, 0, 0], Operation::Init(init)),
        (opcode::LOOKUP, vec![], b"name\0", Operation::Lookup { name: OsStr::new("name") }),
        (opcode::SETATTR, set, b"", Operation::SetAttr(changes)),
        (opcode::OPEN, halves(&[libc::O_WRONLY as u32, 0]), b"", Operation::Open { flags: libc::O_WRONLY }),
        (opcode::READ, read.clone(), b"", Operation::Read(range)),
        (opcode::READDIR, read.clone(), b"", Operation::ReadDir(range)),
        (opcode::READDIRPLUS, read, b"", Operation::ReadDirPlus(range)),
        (opcode::WRITE, write, b"data", Operation::Write { handle: Handle(3), offset: 8192, data: b"data" }),
        (opcode::RELEASE, words(&[3, 0, 0]), b"", Operation::Release { handle: Handle(3) }),
        (
            opcode::FALLOCATE,
            [words(&[3, 4096, 8192]), halves(&[3, 0])].concat(),
            b"",
            Operation::FAllocate { offset: 4096, len: 8192, mode: 3 },
        ),
        (
            opcode::LSEEK,
            [words(&[3, 4096]), halves(&[4, 0])].concat(),
            b"",
            Operation::Seek { offset: 4096, whence: libc::SEEK_HOLE },
        ),
        (
            opcode::GETXATTR,
            halves(&[64, 0]),
            b"user.x\0",
            Operation::GetXattr { name: OsStr::new("user.x"), size: 64 },
        ),
        (opcode::LISTXATTR, halves(&[64, 0]), b"", Operation::ListXattr { size: 64 }),
        (opcode::INTERRUPT, halves(&[8, 0]), b"", Operation::Interrupt { id: 8 }),
    ]
}

#[test]
#[cfg(target_endian = "little")]
fn each_operation_is_decoded_from_both_transports() {
    for (number, structure, rest, operation) in examples() {
        let expected = Ok(Request { id: 7, inode: Inode(9), uid: 1000, operation });
        let bytes = request(number, &[&structure, rest]);
        assert_eq!(decoded(&bytes), expected);
        let (header, _) = split(&bytes).unwrap();
        // A ring has room for the longest structure, and the bytes after a shorter one are those of older requests.
        let structure = [&structure[..], &[0xee; 128]].concat();
        assert_eq!(decode(&header, Arguments::Apart { structure: &structure, rest }), expected);
    }
}

#[test]
fn operations_without_decoded_arguments_need_none() {
    for (number, operation) in [
        (opcode::DESTROY, Operation::Destroy),
        (opcode::FORGET, Operation::Forget),
        (opcode::BATCH_FORGET, Operation::Forget),
        (opcode::GETATTR, Operation::GetAttr),
        (opcode::READLINK, Operation::ReadLink),
        (opcode::OPENDIR, Operation::OpenDir),
        (opcode::RELEASEDIR, Operation::ReleaseDir),
        (opcode::FSYNC, Operation::FSync),
        (opcode::FSYNCDIR, Operation::FSyncDir),
        (opcode::STATFS, Operation::StatFs),
        (opcode::CREATE, Operation::ChangeNames(NameChange::Create)),
        (opcode::UNLINK, Operation::ChangeNames(NameChange::Other)),
        (opcode::RENAME2, Operation::ChangeNames(NameChange::Other)),
        (34, Operation::Unknown(34)),
        (u32::MAX, Operation::Unknown(u32::MAX)),
    ] {
        for arguments in [&b""[..], b"anything"] {
            assert_eq!(decoded(&request(number, &[arguments])).map(|r| r.operation), Ok(operation));
        }
    }
}

#[test]
fn a_request_without_its_last_byte_is_malformed() {
    for (number, structure, rest, _) in examples() {
        let arguments = [&structure[..], rest].concat();
        for len in 0..arguments.len() {
            assert_eq!(decoded(&request(number, &[&arguments[..len]])), Err(Malformed), "{number}: {len}");
        }
    }
}

#[test]
fn a_header_with_another_length_is_malformed() {
    let bytes = request(opcode::GETATTR, &[&[0; 16]]);
    assert!(decoded(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert_eq!(decoded(&bytes[..len]), Err(Malformed), "{len}");
    }
    assert_eq!(decoded(&[&bytes[..], &[0]].concat()), Err(Malformed));
}

#[test]
fn names_and_data_have_one_spelling() {
    for bad in [&b""[..], b"\0", b"name", b"a\0b\0", b"a\0\0", b"a\0b"] {
        assert_eq!(decoded(&request(opcode::LOOKUP, &[bad])), Err(Malformed), "{bad:?}");
    }
    for (size, data) in [(3, &b"data"[..]), (5, b"data"), (u32::MAX, b"data"), (0, b"data"), (1, b"")] {
        let structure = [words(&[3, 8192]), halves(&[size, 0]), words(&[0, 0])].concat();
        assert_eq!(decoded(&request(opcode::WRITE, &[&structure, data])), Err(Malformed), "{size}");
    }
}

proptest! {
    /// Whatever the bytes are, the decoder returns; and it borrows names and data from them.
    #[test]
    fn any_bytes_are_decoded_or_malformed(number in 0u32..60, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = request(number, &[&bytes]);
        if let Ok(Request { operation: Operation::Write { data, .. }, .. }) = decoded(&bytes) {
            prop_assert!(bytes.as_ptr_range().contains(&data.as_ptr()) || data.is_empty());
        }
        let _ = decoded(&bytes[..bytes.len() / 2]);
    }
}
