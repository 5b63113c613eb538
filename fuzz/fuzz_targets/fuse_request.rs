//! Invariants: any bytes are a request or malformed, and a request means the same whether its arguments come in one
//! piece or apart.
//!
//! The header's length is set to that of the input, so that the fuzzer need not find it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuse::Operation;
use pagefold_fuse::abi::{InHeader, opcode};
use pagefold_fuse::request::{Arguments, decode, split};
use pagefold_fuzz::native_u32;

const HEADER: usize = size_of::<InHeader>();

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    let _ = split(&bytes);
    let Some(len) = bytes.get_mut(..4) else { return };
    len.copy_from_slice(&(data.len() as u32).to_ne_bytes());
    let Ok((header, arguments)) = split(&bytes) else { return assert!(bytes.len() < HEADER) };
    let joined = decode(&header, arguments);
    let arguments = &bytes[HEADER..];
    if let Some((structure, rest)) = arguments.split_at_checked(structure_bytes(header.opcode)) {
        let structure = [structure, &[0xee; 128]].concat();
        assert_eq!(decode(&header, Arguments::Apart { structure: &structure, rest }), joined);
    } else {
        assert!(joined.is_err());
    }
    let word = |at| native_u32(arguments, at);
    match joined.map(|request| request.operation) {
        Ok(Operation::Write { data, .. }) => {
            assert_eq!((word(16), data), (data.len() as u32, &arguments[40..]))
        }
        Ok(Operation::Lookup { name }) => assert_eq!(name.len() + 1, arguments.len()),
        Ok(Operation::GetXattr { name, size }) => {
            assert_eq!((name.len() + 9, size), (arguments.len(), word(0)));
        }
        _ => {}
    }
});

/// Bytes of the structure that an operation's arguments begin with.
fn structure_bytes(number: u32) -> usize {
    match number {
        opcode::INIT => 16,
        opcode::SETATTR => 88,
        opcode::OPEN | opcode::GETXATTR | opcode::LISTXATTR => 8,
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS | opcode::WRITE => 40,
        opcode::INTERRUPT => 8,
        opcode::RELEASE | opcode::LSEEK => 24,
        opcode::FALLOCATE => 32,
        _ => 0,
    }
}
