//! rdb
