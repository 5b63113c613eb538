//! The structs and constants of the header, compared with those of the crate by a C program.

use crate::error::Code;
use crate::{pf_region_config, pf_region_stats, pressure};
use std::mem::{offset_of, size_of};
use std::process::Command;

#[test]
fn a_destroyed_region_is_gone_while_an_ending_call_has_what_it_shares() {
    if let Err(error) = pagefold_sys::uffd::kernel_features() {
        return pagefold_testkit::skipped!("destroyed: {error}");
    }
    let region = pagefold_memory::Region::new(pagefold_memory::RegionConfig::new(1 << 20, 1 << 20)).unwrap();
    let mut handle = std::ptr::null_mut();
    // SAFETY: the address is that of a pointer.
    unsafe { crate::guard::put(&raw mut handle, || crate::region::open(region)) }.unwrap();
    // SAFETY: the handle exists.
    let shared = unsafe { crate::region::shared(handle) }.unwrap().clone();
    assert!(shared.region().is_ok());
    // SAFETY: nobody uses the handle any more.
    assert_eq!(unsafe { crate::pf_region_destroy(handle) }, Code::Ok as i32);
    assert!(shared.region().is_err() && shared.region_mut().is_err());
}

/// Lists a struct of the crate as the C program prints it, and the lines of C that print it.
macro_rules! layout {
    ($expected:ident, $c:ident, $type:ident: $($field:ident)*) => {
        $expected.push(format!("{} {}", stringify!($type), size_of::<$type>()));
        $c.push_str(concat!("printf(\"", stringify!($type), " %zu\\n\", sizeof(struct ", stringify!($type), "));\n"));
        $(
            $expected.push(format!("{} {}", stringify!($field), offset_of!($type, $field)));
            $c.push_str(concat!("printf(\"", stringify!($field), " %zu\\n\", offsetof(struct ", stringify!($type),
                ", ", stringify!($field), "));\n"));
        )*
        // A pattern without `..` fails to compile when a field is missing in this list.
        let _complete = |it: $type| { let $type { $($field: _),* } = it; };
    };
}

macro_rules! constants {
    ($expected:ident, $c:ident: $($name:ident = $value:expr;)*) => { $(
        $expected.push(format!("{} {}", stringify!($name), $value));
        $c.push_str(concat!("printf(\"", stringify!($name), " %d\\n\", ", stringify!($name), ");\n"));
    )* };
}

#[test]
fn the_header_has_the_structs_and_constants_of_the_crate() {
    let (mut expected, mut c) = (Vec::new(), String::new());
    layout!(expected, c, pf_region_config: size_bytes len_bytes limit_bytes max_len_bytes max_pool_bytes codec
        codec_level has_codec_level max_pool_percent accept_threshold_percent service same_filled neighbours
        fold_threads handler_threads no_system_calls budget);
    layout!(expected, c, pf_region_stats: size_bytes resident_bytes resident_max_bytes limit_bytes pool_bytes
        metadata_max_bytes compressed_only_bytes stored_bytes compressed_bytes same_filled_pages incompressible_pages
        faults_zero faults_compressed faults_staged faults_failed file_reads memory_waits fault_ns memory_wait_ns
        neighbours_brought neighbours_used evicted_pages evicted_clean_pages pool_limit_hit pool_refused_pages
        file_read_calls file_rereads metadata_bytes page_tables_bytes unmovable_pages);
    constants!(expected, c:
        PF_OK = Code::Ok as i32;
        PF_EINVAL = Code::Invalid as i32;
        PF_ERANGE = Code::Range as i32;
        PF_ELIMIT = Code::Limit as i32;
        PF_EPINNED = Code::Pinned as i32;
        PF_EBUSY = Code::Busy as i32;
        PF_EFILE = Code::File as i32;
        PF_ELOST = Code::Lost as i32;
        PF_ENOTSUP = Code::NotSupported as i32;
        PF_ENOMEM = Code::NoMemory as i32;
        PF_ESYSTEM = Code::System as i32;
        PF_EFORKED = Code::Forked as i32;
        PF_EPANIC = Code::Panic as i32;
        PF_PRESSURE_POOL_FULL = pressure::POOL_FULL;
        PF_PRESSURE_OVER_LIMIT = pressure::OVER_LIMIT;
    );
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    let source_text =
        format!("#include <stdio.h>\n#include \"pagefold.h\"\nint main(void) {{\n{c}return 0;\n}}\n");
    std::fs::write(&source, source_text).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    match Command::new("cc").args(["-I", include, "-o"]).args([&program, &source]).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return pagefold_testkit::skipped!("header: cc: {error}"),
    }
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
}
