//! The attributes of a disk: one table.
//!
//! It serves `disk set` and `disk show`, the control socket, and the manual page.
//! Names, formats and meanings are zram's where zram has the attribute. To add one,
//! add a line.

use super::disk::Disk;
use super::engine;
use crate::failure::{Failure, Outcome};
use pagefold_page::size;

/// Who may do what with an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Shown only; given at creation or counted.
    Read,
    /// Set only.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Access::Read => "read only",
            Access::Write => "write only",
            Access::ReadWrite => "read, write",
        }
    }
}

/// A value that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number of bytes.
    Bytes(u64),
    /// On or off.
    Switch(bool),
    /// Nothing to say beyond "do it".
    Go,
}

type Parse = fn(&str) -> Result<Value, String>;
type Show = fn(&Disk) -> String;
type Store = fn(&Disk, Value) -> Outcome<()>;

/// One attribute.
pub struct Attribute {
    /// What it is called.
    pub name: &'static str,
    /// The unit of its value.
    pub unit: &'static str,
    /// What it means and what may be written.
    pub meaning: &'static str,
    show: Option<Show>,
    change: Option<(Parse, Store)>,
}

/// All attributes, in the order of listings. Those that can be changed can be changed at any time;
/// the others are given when the disk is created.
pub static TABLE: &[Attribute] = &[
    Attribute {
        name: "size",
        unit: "bytes",
        meaning: "size of the device; given at creation",
        show: Some(|d| d.size_bytes().to_string()),
        change: None,
    },
    Attribute {
        name: "codec",
        unit: "name",
        meaning: "compression algorithm; given at creation",
        show: Some(|d| d.store().codec().0.to_string()),
        change: None,
    },
    Attribute {
        name: "level",
        unit: "number",
        meaning: "compression level, or 'none' if the codec has no levels; given at creation",
        show: Some(|d| d.store().codec().1.map_or("none".to_string(), |l| l.to_string())),
        change: None,
    },
    Attribute {
        name: "mem_limit",
        unit: "bytes",
        meaning: "most memory the stored pages may take; a write beyond it fails and changes nothing. Takes \
                  a size such as 2G; 0 for no limit",
        show: Some(|d| d.store().stats().mm.mem_limit.to_string()),
        change: Some((parse_bytes, |d, v| {
            if let Value::Bytes(bytes) = v {
                d.store().set_mem_limit(engine::limit(bytes));
            }
            Ok(())
        })),
    },
    Attribute {
        name: "mem_used_max",
        unit: "bytes",
        meaning: "most memory the stored pages took so far. Takes 0: start again from now",
        show: Some(|d| d.store().stats().mm.mem_used_max.to_string()),
        change: Some((parse_zero, |d, _| {
            d.store().reset_mem_used_max();
            Ok(())
        })),
    },
    Attribute {
        name: "compact",
        unit: "",
        meaning: "takes 1: pack the pool and give empty memory back",
        show: None,
        change: Some((parse_one, |d, _| {
            d.store().compact();
            Ok(())
        })),
    },
    Attribute {
        name: "same_filled_pages_enabled",
        unit: "switch",
        meaning: "whether a page that repeats one word is kept as that word. Takes 1 or 0, on or off",
        show: Some(|d| u8::from(d.store().same_filled_enabled()).to_string()),
        change: Some((parse_switch, |d, v| {
            if let Value::Switch(on) = v {
                d.store().set_same_filled_enabled(on);
            }
            Ok(())
        })),
    },
    Attribute {
        name: "mm_stat",
        unit: "bytes and pages",
        meaning: "orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages \
                  pages_compacted huge_pages huge_pages_since, as zram prints them",
        show: Some(|d| d.store().stats().mm.to_string()),
        change: None,
    },
    Attribute {
        name: "io_stat",
        unit: "requests",
        meaning: "failed_reads failed_writes invalid_io notify_free, as zram prints them",
        show: Some(|d| d.store().stats().io.to_string()),
        change: None,
    },
    Attribute {
        name: "latency",
        unit: "",
        meaning: "latency histograms, seen with 'disk show'. Takes 0: empty them",
        show: None,
        change: Some((parse_zero, |d, _| {
            d.meter().reset_latency();
            Ok(())
        })),
    },
];

impl Attribute {
    /// Who may do what with it.
    pub fn access(&self) -> Access {
        match (&self.show, &self.change) {
            (_, None) => Access::Read,
            (None, Some(_)) => Access::Write,
            (Some(_), Some(_)) => Access::ReadWrite,
        }
    }

    /// Its value as text.
    pub fn show(&self, disk: &Disk) -> Outcome<String> {
        match self.show {
            Some(show) => Ok(show(disk)),
            None => Err(Failure::usage(format!("attribute {} can only be set", self.name))),
        }
    }

    /// Understands a value for it, or says what it takes.
    pub fn parse(&self, text: &str) -> Outcome<Value> {
        let Some((parse, _)) = self.change else {
            let settable = names(|a| a.change.is_some());
            return Err(Failure::usage(format!(
                "attribute {} cannot be set; those that can are {settable}",
                self.name
            )));
        };
        parse(text).map_err(|why| Failure::usage(format!("{}={text}: {why}", self.name)))
    }

    /// Sets it to a value that [`Attribute::parse`] understood.
    pub fn store(&self, disk: &Disk, value: Value) -> Outcome<()> {
        match self.change {
            Some((_, store)) => store(disk, value),
            None => self.parse("").map(|_| ()),
        }
    }
}

/// The attribute of this name.
pub fn find(name: &str) -> Outcome<&'static Attribute> {
    TABLE.iter().find(|a| a.name == name).ok_or_else(|| {
        let all = names(|_| true);
        Failure::usage(format!("there is no attribute {name:?}; the attributes are {all}"))
    })
}

/// Understands `NAME=VALUE`.
pub fn parse_change(text: &str) -> Outcome<(&'static Attribute, Value)> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(Failure::usage(format!(
            "'{text}' is not of the form ATTRIBUTE=VALUE, such as mem_limit=2G"
        )));
    };
    let attribute = find(name)?;
    Ok((attribute, attribute.parse(value)?))
}

/// The table for help and the manual page.
pub fn help() -> String {
    let mut text = String::from("Attributes:");
    for a in TABLE {
        let unit = if a.unit.is_empty() { String::new() } else { format!("; {}", a.unit) };
        text.push_str(&format!("\n  {} ({}{unit})\n      {}", a.name, a.access().name(), a.meaning));
    }
    text
}

fn names(which: impl Fn(&Attribute) -> bool) -> String {
    TABLE.iter().filter(|a| which(a)).map(|a| a.name).collect::<Vec<_>>().join(", ")
}

fn parse_bytes(text: &str) -> Result<Value, String> {
    size::parse(text).map(Value::Bytes).map_err(|e| e.to_string())
}

fn parse_zero(text: &str) -> Result<Value, String> {
    if text == "0" { Ok(Value::Go) } else { Err("it takes 0 only".to_string()) }
}

fn parse_one(text: &str) -> Result<Value, String> {
    if text == "1" { Ok(Value::Go) } else { Err("it takes 1 only".to_string()) }
}

fn parse_switch(text: &str) -> Result<Value, String> {
    match text {
        "1" | "y" | "yes" | "on" | "Y" => Ok(Value::Switch(true)),
        "0" | "n" | "no" | "off" | "N" => Ok(Value::Switch(false)),
        _ => Err("it takes 1 or 0, on or off".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::request::DiskName;
    use crate::failure::Exit;
    use crate::service::config::{CodecConfig, DoorChoice, ServeConfig};

    fn disk() -> Disk {
        let codec = CodecConfig { name: "lz4".into(), level: None, dictionary: None };
        let config = ServeConfig {
            size_bytes: 1 << 20,
            codec,
            mem_limit_bytes: Some(1 << 20),
            door: DoorChoice::Nbd,
            uncompressed: false,
            listen: None,
        };
        Disk::new(DiskName::numbered(0), &config).unwrap()
    }

    fn set(disk: &Disk, change: &str) -> Outcome<()> {
        let (attribute, value) = parse_change(change)?;
        attribute.store(disk, value)
    }

    fn shown(disk: &Disk, name: &str) -> String {
        find(name).unwrap().show(disk).unwrap()
    }

    #[test]
    fn names_are_unique_and_every_attribute_does_something() {
        for (i, a) in TABLE.iter().enumerate() {
            assert!(a.show.is_some() || a.change.is_some(), "{}", a.name);
            assert!(TABLE[..i].iter().all(|b| b.name != a.name), "{}", a.name);
        }
    }

    #[test]
    fn what_is_set_is_shown() {
        let disk = disk();
        assert_eq!(shown(&disk, "size"), "1048576");
        assert_eq!(shown(&disk, "mem_limit"), "1048576");
        set(&disk, "mem_limit=2G").unwrap();
        assert_eq!(shown(&disk, "mem_limit"), "2147483648");
        set(&disk, "mem_limit=0").unwrap();
        assert_eq!(shown(&disk, "mem_limit"), "0");
        set(&disk, "same_filled_pages_enabled=off").unwrap();
        assert_eq!(shown(&disk, "same_filled_pages_enabled"), "0");
        for change in ["compact=1", "mem_used_max=0", "latency=0"] {
            set(&disk, change).unwrap();
        }
    }

    #[test]
    fn wrong_changes_say_what_is_possible() {
        for (change, hint) in [
            ("mem_limit", "ATTRIBUTE=VALUE"),
            ("nosuch=1", "mem_limit"),
            ("size=1G", "mem_limit"),
            ("mem_limit=lots", "4G"),
            ("mem_used_max=1", "0 only"),
            ("same_filled_pages_enabled=2", "on or off"),
            ("compact=", "1 only"),
        ] {
            let e = parse_change(change).map(|_| ()).unwrap_err();
            assert_eq!(e.exit, Exit::Usage);
            assert!(e.message.contains(hint), "{change}: {e}");
        }
        assert!(find("compact").unwrap().show(&disk()).is_err());
    }

    #[test]
    fn statistics_have_zrams_columns() {
        let disk = disk();
        assert_eq!(shown(&disk, "mm_stat").len(), 9 * 8 + 8);
        assert_eq!(shown(&disk, "io_stat"), "       0        0        0        0");
    }
}
