//! Page codecs behind one contract.
//!
//! Cut by lifetime, so that threading and dictionaries fall out of the types:
//! a [`Codec`] is an algorithm with its parameters and prepared dictionary,
//! immutable and shared; a [`Stream`] is the working memory of one operation,
//! owned by one executor at a time; a call has a source and a destination. The
//! algorithms stand in one static table ([`table`]) and are looked up by name
//! once. [`Streams`] keeps one stream per CPU. Same-filled detection lives here
//! too, because it is what runs before any codec.
//!
//! It does not decide what to store raw, where to store anything, or how long:
//! that is the store's policy.
