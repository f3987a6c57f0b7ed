/* In place of a part of cuDNN that another package brought. */
int only_to_be_loaded;
