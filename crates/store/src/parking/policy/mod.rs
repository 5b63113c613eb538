//! When pages are parked without anybody asking.
//!
//! A thread ([`Parker`]) asks a [`driver`] again and again what to do; the driver looks at
//! the store through a narrow trait ([`engine`]), and everything it decides by is a value
//! in a module of its own. So each decision is tested with numbers, and their interplay
//! with a made-up store and a made-up clock; nothing but the thread itself sleeps.
//!
//! | module | what |
//! |---|---|
//! | `settings` | what can be set |
//! | `condition` | how it is, shown without waiting |
//! | `marks` | from which use of memory on, and down to which |
//! | `ages` | which pages: how old they must be so that enough is freed |
//! | `walks` | how often all slots may be looked at |
//! | `meter` | bytes: a rate (`rate`) and a sum over 24 hours (`daily`) |
//! | `quiet` | waiting while the machine is busy |
//! | `trouble` | waiting after the medium failed or was full |
//! | `throttle` | writers at the memory limit waiting for room |
//! | `driver` | the order in which these are asked |
//! | `engine`, `store` | the store as the driver sees it |
//! | `parker` | the thread |
//!
//! It does not know how a page is parked: that is the pass.

mod ages;
mod condition;
mod daily;
mod driver;
mod engine;
mod marks;
mod meter;
mod parker;
mod quiet;
mod rate;
mod settings;
mod store;
mod throttle;
mod trouble;
mod walks;

#[cfg(test)]
mod tests;

pub use condition::Condition;
pub use parker::Parker;
pub use settings::Policy;
pub use throttle::Throttled;
