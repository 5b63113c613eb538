//! The names and modes of the files of a device: the attributes of the server's table that zram has too.

use pagefold_server::attributes;
use std::sync::LazyLock;

/// A file of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeFile {
    /// The name of the file, which is that of the attribute.
    pub name: &'static str,
    /// Its permission bits.
    pub mode: u16,
}

/// Every file of a device that is an attribute of the disk. Further files, such as `size`, come from its loop device.
pub static ATTRIBUTE_FILES: LazyLock<Vec<AttributeFile>> = LazyLock::new(|| {
    let file = |a: &attributes::Attribute| Some(AttributeFile { name: a.name, mode: a.mode? });
    attributes::all().filter_map(file).collect()
});
