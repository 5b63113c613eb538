//! The names and modes of the files of a device, as the kernel's zram has them.

/// A file of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeFile {
    /// The name of the file, which is that of the attribute.
    pub name: &'static str,
    /// Its permission bits.
    pub mode: u16,
}

/// Every file of a device that is an attribute of the disk. Further files, such as `size`, come from its loop device.
pub const ATTRIBUTE_FILES: [AttributeFile; 22] = [
    file("disksize", 0o644),
    file("initstate", 0o444),
    file("reset", 0o200),
    file("mem_limit", 0o200),
    file("mem_used_max", 0o200),
    file("idle", 0o200),
    file("compact", 0o200),
    file("max_comp_streams", 0o644),
    file("comp_algorithm", 0o644),
    file("recomp_algorithm", 0o644),
    file("algorithm_params", 0o200),
    file("recompress", 0o200),
    file("backing_dev", 0o644),
    file("writeback", 0o200),
    file("writeback_limit", 0o644),
    file("writeback_limit_enable", 0o644),
    file("writeback_batch_size", 0o644),
    file("compressed_writeback", 0o644),
    file("mm_stat", 0o444),
    file("io_stat", 0o444),
    file("bd_stat", 0o444),
    file("debug_stat", 0o444),
];

const fn file(name: &'static str, mode: u16) -> AttributeFile {
    AttributeFile { name, mode }
}
