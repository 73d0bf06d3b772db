//! `bytes::BufMut` for a charged vector.

use bytes::BufMut;
use bytes::buf::UninitSlice;

use super::charged_vec::ChargedVec;

/// Fills the capacity that is charged already, and does not grow the vector: growth inside a read
/// could not be refused. Make room first, with [`reserve_async`](ChargedVec::reserve_async) or
/// [`reserve`](ChargedVec::reserve). A read into a vector without room returns 0 bytes, as at the
/// end of the stream.
// SAFETY: `chunk_mut` is the spare capacity, and the same until the vector changes; `remaining_mut`
// is its length.
#[allow(unsafe_code)]
unsafe impl BufMut for ChargedVec<u8> {
    fn remaining_mut(&self) -> usize {
        self.spare()
    }

    unsafe fn advance_mut(&mut self, bytes: usize) {
        assert!(
            bytes <= self.spare(),
            "{bytes} bytes are more than the capacity has left"
        );
        let length = self.len() + bytes;
        // SAFETY: within the capacity, and the caller has filled so many bytes.
        unsafe { self.vec().set_len(length) };
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        UninitSlice::uninit(self.vec().spare_capacity_mut())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Runtime;

    #[test]
    fn a_buffer_is_filled_as_far_as_it_is_charged() {
        let runtime = Runtime::builder().audit(true).build().unwrap();
        let root = runtime.root();
        let mut buffer = ChargedVec::with_capacity(&root, 8).unwrap();
        assert_eq!(buffer.remaining_mut(), 8);
        buffer.put_slice(b"abc");
        buffer.put_u32(0x6465_6667);
        assert_eq!((&*buffer, buffer.remaining_mut()), (&b"abcdefg"[..], 1));
        buffer.put_u8(b'h');
        assert_eq!(
            (buffer.len(), buffer.remaining_mut(), root.live()),
            (8, 0, 8)
        );
        let frozen = bytes::Bytes::from_owner(buffer);
        assert_eq!(
            (frozen.slice(6..), root.live()),
            (bytes::Bytes::from_static(b"gh"), 8)
        );
        drop(frozen);
        assert_eq!(root.live(), 0);
    }
}
