//! Loops that are compiled for the instructions that the CPU has.
//!
//! All variants are the same code and have the same results: the compiler makes other vectors of it.

/// Instructions that this CPU has. Only [`Isa::detect`] and [`Isa::all`] make values of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The best that this CPU has.
    pub(crate) fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx512() {
                return Isa(Kind::Avx512);
            }
            if is_x86_feature_detected!("avx2") {
                return Isa(Kind::Avx2);
            }
        }
        Isa(Kind::Portable)
    }

    /// Which they are.
    pub(crate) fn kind(self) -> Kind {
        self.0
    }

    /// All that this CPU has.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Isa> {
        let mut all = vec![Isa(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(is_x86_feature_detected!("avx2").then_some(Isa(Kind::Avx2)));
            all.extend(has_avx512().then_some(Isa(Kind::Avx512)));
        }
        all
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Defines a method of [`Isa`] that runs a function, which is inlined, as it is compiled for each set of instructions.
macro_rules! dispatch {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?, $body:path) => {
        impl $crate::isa::Isa {
            $(#[$doc])*
            fn $name(self, $($arg: $type),*) $(-> $result)? {
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) $(-> $result)? {
                    $body($($arg),*)
                }
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $type),*) $(-> $result)? {
                    $body($($arg),*)
                }
                match self.kind() {
                    $crate::isa::Kind::Portable => $body($($arg),*),
                    // SAFETY: values of this kind are made only if the CPU has the features.
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Kind::Avx2 => unsafe { avx2($($arg),*) },
                    // SAFETY: the same.
                    #[cfg(target_arch = "x86_64")]
                    $crate::isa::Kind::Avx512 => unsafe { avx512($($arg),*) },
                }
            }
        }
    };
}

pub(crate) use dispatch;
