"""Non-autoregressive Transformers: the decoder predicts all target tokens at once. Its input is <bos> at a
predicted number of positions, <bos> at a fixed number, copied source tokens, or a partly masked target."""
