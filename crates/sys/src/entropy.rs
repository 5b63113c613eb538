//! Random numbers from the kernel, which cannot be predicted.

use crate::{SysError, failed};

/// Returns 64 random bits from the kernel.
pub fn random_u64() -> Result<u64, SysError> {
    let mut bytes = [0; 8];
    // Once the kernel's pool is initialised, requests of up to 256 bytes are never short.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(n) if n == bytes.len() => Ok(u64::from_ne_bytes(bytes)),
        Ok(_) => Err(SysError::new("reading random bits", libc::EIO)),
        Err(e) => Err(failed("reading random bits")(e)),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_numbers_differ() {
        assert_ne!(super::random_u64().unwrap(), super::random_u64().unwrap());
    }
}
